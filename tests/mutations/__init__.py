"""Mistakes in the product that its tests must catch: one table for each area."""
