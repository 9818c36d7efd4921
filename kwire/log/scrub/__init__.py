"""The search for damage in closed segments while their node runs."""
