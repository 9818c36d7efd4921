"""A schema registry for tests, in the process of the test."""
