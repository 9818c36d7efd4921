"""Coordinators: deciders over the records of an internal topic, and what runs them."""
