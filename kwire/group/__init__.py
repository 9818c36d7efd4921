"""Groups: membership, rebalances and committed offsets, as pure deciders."""
