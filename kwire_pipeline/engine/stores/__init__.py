"""Stores of files that offer more through their own requests than through Hadoop."""
