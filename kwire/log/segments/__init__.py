"""The segments of a log: their files, indexes and reserved blocks.

Rules of the package: a segment knows positions, offsets and timestamps of batches, and nothing of
producers, leader epochs or the rest of its log.
"""
