"""The exception of this package."""


class BrokerError(Exception):
    """A test broker cannot do what was asked; the text says what failed, why, and what to do."""
