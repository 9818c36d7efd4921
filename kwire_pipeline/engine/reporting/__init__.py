"""The figures of a run: plain data, and their ways to a terminal, a log and Prometheus."""
