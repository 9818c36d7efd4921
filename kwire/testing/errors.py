"""The exception of this package."""


class BrokerError(Exception):
    """A test broker cannot do what was requested; the text says what failed and what to do."""
