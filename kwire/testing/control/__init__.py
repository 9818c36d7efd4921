"""Test brokers for every language: their methods over HTTP, and a command line client."""
