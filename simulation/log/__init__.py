"""The simulation of a broker's logs: the event loop, its threads, and power losses."""
