"""Requests read back from frames, as a server reads them."""

from kwire.codec.apis import BY_KEY
from kwire.codec.compile import decoder
from kwire.codec.frame import Body, RequestHead
from kwire.codec.primitives import Buffer


def read_request(head: RequestHead, frame: Buffer, pos: int) -> Body:
    """Parse the body that follows a header which ``read_header`` has parsed."""
    return decoder(BY_KEY[head.api_key].request, head.api_version)(frame, pos)[0]
