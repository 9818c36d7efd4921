"""The simulation of the controller's decisions: its log, its brokers, and failovers."""
