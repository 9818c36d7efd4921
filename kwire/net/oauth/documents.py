"""Reads small documents of an identity provider, from an HTTP server or a file.

The standard library's HTTP client runs in a thread: the event loop never waits for a provider. One
step of a request takes at most the configured time, the whole request at most :data:`STEPS` times
that; documents larger than :data:`DOCUMENT_BYTES_MAX` are rejected. Errors never show a secret.
"""

import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from functools import partial
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

import attrs
import trio

DOCUMENT_BYTES_MAX: Final = 1 << 20
STEPS: Final = 3


class Unavailable(Exception):
    """A document that could not be read; the reason is for the log."""


@attrs.define(eq=False, repr=False)
class Documents:
    """The documents at one address."""

    url: str
    timeout_s: float
    """The time limit for one step of a request."""
    tls: ssl.SSLContext | None = None
    """The trusted certificates; None for the system's."""
    _threads: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(2))
    """Limits the threads that a hanging provider can occupy."""

    @property
    def is_file(self) -> bool:
        return urlsplit(self.url).scheme == "file"

    def read_file(self) -> bytes:
        """Return the file; raise Unavailable."""
        try:
            with open(url2pathname(urlsplit(self.url).path), "rb") as file:
                return _check_size(file.read(DOCUMENT_BYTES_MAX + 1))
        except OSError as error:
            raise Unavailable(error.strerror or str(error)) from None

    async def get(self) -> bytes:
        """Return the document; raise Unavailable."""
        return await self._in_thread(None, {})

    async def post(self, form: bytes, headers: Mapping[str, str]) -> bytes:
        """Send a form and return the answer, or return the file; raise Unavailable."""
        return await self._in_thread(form, headers)

    async def _in_thread(self, form: bytes | None, headers: Mapping[str, str]) -> bytes:
        read = self.read_file if self.is_file else partial(self._exchange, form, headers)
        with trio.move_on_after(self.timeout_s * STEPS):
            return await trio.to_thread.run_sync(
                read, abandon_on_cancel=True, limiter=self._threads
            )
        raise Unavailable(f"no answer within {self.timeout_s * STEPS:.0f} s")

    def _exchange(self, form: bytes | None, headers: Mapping[str, str]) -> bytes:
        """Send a request and return the body of the answer; runs in a thread."""
        request = urllib.request.Request(self.url, form, dict(headers))
        try:
            https = urllib.request.HTTPSHandler(context=self.tls)
            opener = urllib.request.build_opener(_NoRedirects, https)
            with opener.open(request, timeout=self.timeout_s) as response:
                return _check_size(response.read(DOCUMENT_BYTES_MAX + 1))
        except urllib.error.HTTPError as error:
            with error:
                raise Unavailable(f"the server answered with status {error.code}") from None
        except urllib.error.URLError as error:
            raise Unavailable(str(error.reason)) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unavailable(str(error) or type(error).__name__) from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects: secrets and trust belong only to the configured address."""

    def redirect_request(self, *arguments: object) -> None:
        """Make no further request, so that the redirect is an error with its status."""


def open_documents(url: str, timeout_s: float, options: Mapping[str, str]) -> Documents:
    """Return the documents at an address; ``options`` of a JAAS line may name a trust store.

    Raises ConfigError if the trust store is unusable.
    """
    texts = {name: text for name, text in options.items() if name.startswith("ssl.")}
    if not texts:
        return Documents(url, timeout_s)
    from kwire.configs.tls import TlsConfig, check_stores
    from kwire.net.tls.contexts import client_context

    tls = TlsConfig(texts)
    check_stores(tls)
    return Documents(url, timeout_s, client_context(tls))


def _check_size(data: bytes) -> bytes:
    if len(data) > DOCUMENT_BYTES_MAX:
        raise Unavailable(f"the document has more than {DOCUMENT_BYTES_MAX} bytes")
    return data
