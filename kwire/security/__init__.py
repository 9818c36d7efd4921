"""Authentication with SASL: its mechanisms and the conversation around them, as pure logic.

This package is loaded only by a node that has a listener with SASL.
"""
