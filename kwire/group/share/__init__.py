"""Share groups (KIP-932): their members, their assignment, the state of their partitions."""
