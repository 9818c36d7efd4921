"""One node: builds its parts, and starts and stops them in the right order."""
