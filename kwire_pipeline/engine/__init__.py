"""The pipeline on Spark: one streaming query, its identity, and the commands that look at both.

Rules of this package: decisions (`identity.py`, `offsets.py`) are functions of plain data; what
touches the file system of the checkpoint (`storage.py`) and the brokers (`cluster.py`) goes
through Spark's JVM, so the same jars, credentials and URLs serve for all.
"""
