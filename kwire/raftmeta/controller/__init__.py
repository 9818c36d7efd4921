"""The active controller: turns requests into metadata records and answers."""
