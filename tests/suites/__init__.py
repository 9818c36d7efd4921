"""What the compatibility tests rest on: the lists of suites and the checks of histories."""
