"""A scriptable engine on a real loopback socket, for the router's unit tests: it plays prefill or decode.

What it answers is a coroutine `script(request, wire)`, which writes bytes as it likes; requests are kept in order.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

DECODE_HOST = "10.0.9.2"
"""An address as it stands in handles; no client may ever see it."""


@dataclass(slots=True)
class Request:
    path: str
    headers: dict[str, str]
    raw: bytes
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the router closes the connection while the request is being answered."""

    @property
    def body(self) -> dict[str, Any]:
        return dict(json.loads(self.raw))


class Wire:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def json(self, status: int, body: Any) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(raw))
        await self.send(head + raw)

    async def start_stream(self) -> None:
        await self.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    async def part(self, data: bytes) -> None:
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        await self.send(b"0\r\n\r\n")

    def cut(self) -> None:
        """The engine dies: the connection breaks."""
        self._writer.transport.abort()


Script = Callable[[Request, Wire], Awaitable[None]]


class FakeEngine:
    def __init__(self, script: Script, host: str = "127.0.0.1") -> None:
        self.script = script
        self.host = host
        self.requests: list[Request] = []
        self.health = 200
        self.checks = 0
        """Requests for /health, which are not among the others."""
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.requests]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As a killed process: the listener is gone and every connection breaks."""
        if self._server is not None:
            self._server.close()
        serving = dict(self._open)
        for writer, task in serving.items():
            writer.transport.abort()
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in serving.values() if task is not None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = asyncio.current_task()
        try:
            while True:
                request = await self._read(reader)
                await self._answer(request, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            del self._open[writer]
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Request:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        return Request(head[0].split(" ")[1], headers, raw)

    async def _answer(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire(writer)
        if request.path == "/health":
            self.checks += 1
            await wire.json(self.health, {})
            return
        self.requests.append(request)
        # The router sends one request at a time on a connection: a byte now can only be its end.
        watcher = asyncio.ensure_future(reader.read(1))
        watcher.add_done_callback(lambda done: request.closed.set() if not done.cancelled() else None)
        try:
            await self.script(request, wire)
        finally:
            if watcher.done():
                raise ConnectionError
            watcher.cancel()
            await asyncio.wait((watcher,))


def handle(engine_id: str = "e1", request: str = "r1", **more: Any) -> dict[str, Any]:
    """What decode's connector returns, as recorded from vLLM 0.32 with our connector."""
    return {
        "do_remote_prefill": False,
        "do_remote_decode": True,
        "remote_block_ids": [[1, 2, 3]],
        "remote_engine_id": engine_id,
        "remote_request_id": request,
        "remote_host": DECODE_HOST,
        "remote_port": 5600,
        "tp_size": 1,
        "remote_num_tokens": 96,
        "remote_blocks_expiry_time": 812.4,
        "kvr": {"version": 1, "block_size": 32, "tokens": 96, "digests": "AAAA", "tail": "AAAA"},
    } | more


def prefilled(pulled: int = 0, **more: Any) -> dict[str, Any]:
    """What prefill's connector returns."""
    kvr = {"version": 1, "pulled_tokens": pulled}
    return handle("p1", "rp", kvr=kvr) | {"do_remote_prefill": True, "do_remote_decode": False} | more


async def prefill_script(request: Request, wire: Wire) -> None:
    pulled = 64 if request.body["kv_transfer_params"].get("remote_engine_id") else 0
    await wire.json(
        200, {"id": "x", "choices": [], "usage": {"prompt_tokens": 100}, "kv_transfer_params": prefilled(pulled)}
    )


TEXT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
FINISH = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"!"},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def with_field(event: bytes, params: Any) -> bytes:
    """`event` with `kv_transfer_params` as its last field, and otherwise the same bytes."""
    end = event.rindex(b"}")
    return event[:end] + b',"kv_transfer_params":' + json.dumps(params, separators=(",", ":")).encode() + event[end:]


def decode_script(params: Any = None, events: list[bytes] | None = None) -> Script:
    """Streams `events` (by default two chunks and [DONE], the handle on the second), or the same as one JSON."""

    async def script(request: Request, wire: Wire) -> None:
        given = handle() if params is None else params
        if not request.body.get("stream"):
            await wire.json(200, {"id": "c", "choices": [{"finish_reason": "stop"}], "kv_transfer_params": given})
            return
        await wire.start_stream()
        for event in events if events is not None else [TEXT, with_field(FINISH, given), DONE]:
            await wire.part(event)
        await wire.end_stream()

    return script
