"""Tests that find the bugs of the shop, those in shop/bugs.py too."""
