"""Share groups (KIP-932): the state of their partitions."""
