"""Tests of kwire.log."""
