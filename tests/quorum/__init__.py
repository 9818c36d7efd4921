"""Scenarios of a quorum of several nodes, written once for a simulated and a real cluster.

`cluster.py` has the actions and views of a scenario; `simulated.py` and `real.py` are the worlds;
`watch.py` checks every step in both.  The scenarios are in the `test_*.py` files.
"""
