"""Tests of the base of the compatibility tests: the lists of suites and the checks of histories."""
