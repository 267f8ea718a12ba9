"""HTTP/1.1 client for one engine: a pool of connections, limits, time-outs, cancellation. Bodies stream with back-pressure.

A connection goes back to the pool only after a whole response; whatever else happens closes it, which is how an engine
learns that nobody wants its answer any more.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

import httptools

Headers = Sequence[tuple[bytes, bytes]]

# Below uvicorn's keep-alive of 5 s, so that we never write to a connection that the engine is about to close.
_LONGEST_IDLE = 4.0
_WINDOW = 64 * 1024


class UpstreamError(Exception):
    """The engine could not be reached, broke the connection or did not speak HTTP. The text is for our logs only."""


class NotSent(UpstreamError):
    """There was no connection to send the request on: the engine knows nothing of it."""


class ConnectError(NotSent):
    """Nothing listens there: the engine's process is gone, and its blocks with it."""


@dataclass(slots=True)
class Delivery:
    """How far a request got; told also when it fails or is cancelled."""

    sent: bool = False
    """Whether the engine may know of the request."""


class _Connection(asyncio.Protocol):
    """One connection, one response at a time. httptools calls the `on_*` methods."""

    def __init__(self) -> None:
        self.closed = False
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._wake: asyncio.Future[None] | None = None
        self._reset()

    def _reset(self) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._error: Exception | None = None
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.has_headers = False
        self.complete = False
        self.any_byte = False
        self._reusable = False

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport without being one.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.any_byte = True
        if self.complete or self.idle_since:
            # Bytes that no request asked for: nothing on this connection can be trusted.
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._error = UpstreamError(f"not HTTP: {error}")
            self.abort()
        self._notify()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if not self.complete and self._error is None:
            if self.has_headers and not self._is_framed():
                self.complete = True
            else:
                self._error = UpstreamError(f"connection lost: {exc or 'closed by the engine'}")
        self._notify()

    # httptools
    def on_message_begin(self) -> None:
        if self.complete:
            raise UpstreamError("bytes after the end of the answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status >= 200:
            self.has_headers = True

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self._buffered += len(body)
        if self._buffered > _WINDOW and self._transport is not None:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if not self.has_headers:
            self.headers.clear()  # an interim 1xx answer
            return
        self.complete = True
        self._reusable = self._parser.should_keep_alive()

    # ours
    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self._reset()
        self.idle_since = 0.0
        self._transport.write(request)

    async def wait_headers(self) -> None:
        while not self.has_headers:
            self._raise_error()
            await self._wait()

    async def read(self) -> bytes:
        """The body bytes that have come since the last read; b"" at the end."""
        while not self._chunks:
            if self.complete:
                return b""
            self._raise_error()
            await self._wait()
        joined = b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        if self._transport is not None and not self.closed:
            self._transport.resume_reading()
        return joined

    @property
    def reusable(self) -> bool:
        return self.complete and self._reusable and not self._chunks and not self.closed

    def abort(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def _is_framed(self) -> bool:
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    async def _wait(self) -> None:
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class Response:
    """A response whose status is known. Has to be closed; closing before the end aborts it at the engine."""

    def __init__(self, client: Client, connection: _Connection, idle_timeout: float) -> None:
        self._client = client
        self._connection = connection
        self._idle_timeout = idle_timeout
        self.status = connection.status

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self._connection.headers if key == name), None)

    async def read(self) -> bytes:
        """Next body bytes, b"" at the end. Raises `UpstreamError`, also after `idle_timeout` seconds of silence."""
        try:
            async with asyncio.timeout(self._idle_timeout):
                return await self._connection.read()
        except TimeoutError:
            raise UpstreamError(f"silent for {self._idle_timeout:g} s") from None

    async def read_all(self, limit: int) -> bytes:
        parts = bytearray()
        while part := await self.read():
            parts += part
            if len(parts) > limit:
                raise UpstreamError(f"answer longer than {limit} bytes")
        return bytes(parts)

    def close(self) -> None:
        self._client.give_back(self._connection)


def address(url: str) -> SplitResult:
    """Raises `ValueError` for a text that can't be where an engine listens."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme == "http" and parts.hostname and parts.port != 0
    except ValueError:  # a port or an IPv6 address that is none
        usable = False
    if not usable:
        raise ValueError(f"{url!r} is not an engine's address. hint: http://HOST:PORT")
    return parts


class Client:
    """Requests to one engine at `url` (http://host:port); `connect_timeout()` is asked for at each connection."""

    def __init__(self, url: str, connect_timeout: Callable[[], float]) -> None:
        parts = address(url)
        assert parts.hostname is not None
        self._host = parts.hostname
        self._port = parts.port or 80
        self._authority = parts.netloc.encode()
        self._path = parts.path.rstrip("/").encode()
        self._connect_timeout = connect_timeout
        self._idle: list[_Connection] = []
        self._closed = False

    @property
    def names(self) -> tuple[bytes, ...]:
        """What must not show in text for a client."""
        return (self._authority, self._host.encode())

    async def request(
        self,
        method: bytes,
        path: bytes,
        headers: Headers,
        body: bytes,
        *,
        timeout: float,
        idle_timeout: float,
        delivery: Delivery | None = None,
        is_repeatable: bool = True,
    ) -> Response:
        """Returns when the status and headers are there, within `timeout` seconds. Raises `UpstreamError`.

        An engine may close an idle connection just as a request goes out on it, which looks the same as an engine that
        failed with the request. One that `is_repeatable` is then sent again, once, on a fresh connection.
        """
        head = [b"%s %s%s HTTP/1.1\r\nhost: %s\r\n" % (method, self._path, path, self._authority)]
        head += [b"%s: %s\r\n" % header for header in headers]
        head.append(b"content-length: %d\r\n\r\n" % len(body))
        request = b"".join(head) + body
        try:
            async with asyncio.timeout(timeout):
                connection = await self._exchange(request, delivery or Delivery(), is_repeatable)
                return Response(self, connection, idle_timeout)
        except TimeoutError:
            raise UpstreamError(f"no answer within {timeout:g} s") from None

    async def _exchange(self, request: bytes, delivery: Delivery, is_repeatable: bool) -> _Connection:
        connection, is_pooled = await self._connection()
        try:
            delivery.sent = True
            connection.send(request)
            try:
                await connection.wait_headers()
            except UpstreamError:
                if not (is_pooled and is_repeatable) or connection.any_byte:
                    raise
                connection.abort()
                connection = await self._connect()
                connection.send(request)
                await connection.wait_headers()
        except BaseException:
            connection.abort()
            raise
        return connection

    async def _connection(self) -> tuple[_Connection, bool]:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and time.monotonic() - connection.idle_since < _LONGEST_IDLE:
                return connection, True
            connection.abort()
        return await self._connect(), False

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        seconds = self._connect_timeout()
        try:
            async with asyncio.timeout(seconds):
                _, connection = await loop.create_connection(_Connection, self._host, self._port)
        except TimeoutError:
            raise NotSent(f"no connection within {seconds:g} s") from None
        except OSError as error:
            raise ConnectError(f"no connection: {error}") from None
        return connection

    def give_back(self, connection: _Connection) -> None:
        if connection.reusable and not self._closed:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.abort()

    def close(self) -> None:
        """Keeps no connection from now on; requests still work."""
        self._closed = True
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
