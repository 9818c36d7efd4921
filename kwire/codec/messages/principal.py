"""The principal of the client in a forwarded request (Envelope)."""

from kwire.codec.schema import Bool, String, field, message


@message(versions="0", flexible="0+")
class DefaultPrincipal:
    """A principal in the form in which brokers send it to controllers."""

    type: String = field("0+")
    name: String = field("0+")
    token_authenticated: Bool = field("0+")
