"""The configuration of a pipeline: one YAML file, checked before Spark or a broker is involved.

Rules of this package: it imports neither Spark nor a Kafka client; the model (`model.py`) is
frozen; a key is declared once, as a field of the model with its type, default and meaning, and the
loader, the flags and docs/pipeline.md are made from these declarations; a value that came from the
environment is never shown.
"""
