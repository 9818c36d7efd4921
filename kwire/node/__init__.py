"""One node: its parts are built, started in order and stopped in order here."""
