"""The pipeline on Spark: one streaming query, its identity, and the commands that inspect both.

Rules of this package: decisions (`identity.py`, `offsets.py`) are functions of plain data. Access
to the checkpoint's file system (`storage.py`) and to the brokers (`cluster.py`) goes through
Spark's JVM, so that the same jars, credentials and URLs work everywhere.
"""
