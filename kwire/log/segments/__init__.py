"""The segments of a log: their files, indexes and reserved disk blocks.

Rules of the package: a segment handles positions, offsets and timestamps of batches. It does not
depend on producers, leader epochs or the rest of its log.
"""
