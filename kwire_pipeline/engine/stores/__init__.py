"""Stores of files whose own requests offer more than Hadoop does."""
