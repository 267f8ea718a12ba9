"""uvicorn's HTTP protocol with limits that it lacks: on the size, the number and the time of a request's headers."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from router import errors

MOST_HEADER_BYTES = 64 * 1024
MOST_HEADERS = 100
LONGEST_HEADER_SECONDS = 10.0


class _TooLarge(Exception):
    """Raised inside the parser, which then makes uvicorn answer 400; `send_400_response` knows better."""


class LimitedProtocol(HttpToolsProtocol):
    """Answers 431 to headers beyond the limits and closes a connection whose headers do not end in time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_in_head = True
        self._is_too_large = False
        self._head_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_head(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._is_in_head or self.transport.is_closing():
            return
        # The parser gathers a line however long it is; of one that has not ended only what arrived can be counted.
        self._head_bytes += len(data)
        if self._head_bytes > MOST_HEADER_BYTES:
            self._is_too_large = True
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._head_bytes = 0
        self._expect_head(LONGEST_HEADER_SECONDS)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._expect_head(None)
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MOST_HEADER_BYTES or len(self.headers) > MOST_HEADERS:
            self._is_too_large = True
            raise _TooLarge
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        if not self._is_too_large:
            super().send_400_response(msg)
            return
        body = errors.body(431, f"Headers are limited to {MOST_HEADERS} fields and {MOST_HEADER_BYTES} bytes.")
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[431] + head + body)
        self.transport.close()

    def _expect_head(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering:  # a pipelined request may not end the answer before it
            self._expect_head(LONGEST_HEADER_SECONDS)
        else:
            self.transport.close()
