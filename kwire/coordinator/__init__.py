"""Coordinators: deciders over the records of an internal topic, and the service that runs them."""
