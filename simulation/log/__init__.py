"""The simulation of a broker's logs: the loop, its threads, and losses of power."""
