"""One node: here its parts are built, started and stopped in the right order."""
