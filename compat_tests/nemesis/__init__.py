"""Clusters of real processes under faults drawn from a seed, and the histories of their clients."""
