"""What survives when the server is killed, stopped or frozen in the middle of its work."""
