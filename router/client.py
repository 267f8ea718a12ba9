"""The client's side of one request: plain ASGI messages in, plain ASGI messages out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from router import errors
from router.errors import Answer

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


# A client that sends nothing of an unfinished body, or takes nothing of an answer, for this long is as good as gone.
_LONGEST_SILENCE = 60.0


class Gone(Exception):
    """The client closed its connection, or stopped taking part in it."""


class BrokenOff(Exception):
    """The router ends the request: the time for a drain is over."""


def header(scope: Scope, name: bytes) -> str | None:
    """A request header's value; latin-1, as HTTP has it."""
    value = next((value for key, value in scope["headers"] if key == name), None)
    return None if value is None else value.decode("latin-1")


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Raises a 408, 413 or 415 `Fault`, or `Gone`."""
    too_large = errors.fault(413, f"The body is larger than {limit} bytes.")
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > limit:
        raise too_large
    if header(scope, b"content-encoding") not in (None, "identity"):
        raise errors.fault(415, "Compressed request bodies are not accepted; send the JSON as it is.")
    body = bytearray()
    while True:
        try:
            async with asyncio.timeout(_LONGEST_SILENCE):
                message = await receive()
        except TimeoutError:
            raise errors.fault(408, "The rest of the body did not come.") from None
        if message["type"] == "http.disconnect":
            raise Gone
        body += message.get("body", b"")
        if len(body) > limit:
            raise too_large
        if not message.get("more_body"):
            return bytes(body)


async def until_gone(receive: Receive) -> None:
    """Returns when the client has left. Only for after the body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Reply:
    """What goes to the client, at the client's pace. `started` is the point after which a fault can't become a status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.started = False
        self.status = 0

    async def _put(self, message: Message) -> None:
        try:
            async with asyncio.timeout(_LONGEST_SILENCE):
                await self._send(message)
        except TimeoutError:
            raise Gone from None

    async def start(self, status: int, content_type: bytes, extra: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        headers = [(b"content-type", content_type), (b"x-request-id", self._request_id.encode("latin-1")), *extra]
        self.started, self.status = True, status
        await self._put({"type": "http.response.start", "status": status, "headers": headers})

    async def part(self, body: bytes) -> None:
        await self._put({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self, body: bytes = b"") -> None:
        await self._put({"type": "http.response.body", "body": body, "more_body": False})

    async def whole(self, status: int, body: bytes, extra: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        length = (b"content-length", str(len(body)).encode())
        await self.start(status, b"application/json", (length, *extra))
        await self.end(body)

    async def answer(self, answer: Answer) -> None:
        extra = () if answer.retry_after is None else ((b"retry-after", str(answer.retry_after).encode()),)
        await self.whole(answer.status, answer.body, extra)


async def run_until_gone(work: Awaitable[None], receive: Receive, broken_off: asyncio.Future[None]) -> None:
    """Runs `work`. When the client leaves first, or `broken_off` is done, cancels it, waits for its clean-up and raises."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait((task, watcher, broken_off), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
            if task.cancelled():
                raise BrokenOff if broken_off.done() else Gone
        await task
    finally:
        watcher.cancel()
        if not task.done():
            task.cancel()
