"""Stores of files whose own requests say more than Hadoop's file systems do."""
