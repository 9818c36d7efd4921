"""The cluster's metadata: images built from committed records, and their publication."""
