"""The configuration of a pipeline: one YAML file, checked before Spark or a broker is involved.

Rules of this package: it imports neither Spark nor a Kafka client. The model (`model.py`) is
frozen. A key is declared once, as a field of the model with its type, default and meaning; the
loader, the flags and docs/pipeline.md are built from these declarations. A value that came from the
environment is never shown.
"""
