"""The simulation of ISR changes that overtake the metadata: one partition on four brokers."""
