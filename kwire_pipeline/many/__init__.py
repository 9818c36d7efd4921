"""Many tables from one file: which topics become which tables, and when each is written.

Each table is written by a run of one table, `kwire_pipeline.engine.query.run_pipeline`, with its
own checkpoint, lease and dead letters. The runs share the session, the client of the brokers, and
the requests to them.
"""
