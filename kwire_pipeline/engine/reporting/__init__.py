"""The figures of a run, and their output to a terminal, a log and Prometheus."""
