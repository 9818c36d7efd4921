"""Compatibility scenarios in which one client writes records and the others read them."""
