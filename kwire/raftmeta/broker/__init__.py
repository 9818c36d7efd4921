"""A broker's registration, heartbeats and shutdown, as the controller sees them."""
