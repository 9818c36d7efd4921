"""The exceptions of this package."""


class BrokerError(Exception):
    """A test broker cannot do what was requested; the text says what failed and what to do."""


class WrongArgument(BrokerError):
    """An argument whose type or value is never accepted, whatever the state of the broker."""
