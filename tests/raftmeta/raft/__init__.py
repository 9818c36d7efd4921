"""Tests of the consensus machine, rule by rule, and of the service that runs it."""
