"""A router in this process on a real socket, with fake engines behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from hypothesis import settings
from uvicorn.server import ServerState

from router.app import Router
from router.discovery import Source, Static
from router.live import Live
from router.protocol import LimitedProtocol
from runtime.exposition import total
from tests.fakes.engine import FakeEngine, decode_script, prefill_script

# Examples get no time limit: on a machine that runs engines beside the tests it fails by chance.
settings.register_profile("router", deadline=None)
settings.load_profile("router")


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes
    is_whole: bool
    """Whether the body ended as HTTP says, not by a broken connection."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A raw HTTP/1.1 client: what a test sees is what came over the wire."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def open(self, path: str, body: Any, **headers: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = {"host": "router", "content-type": "application/json", "content-length": str(len(raw))}
        lines |= {name.replace("_", "-"): value for name, value in headers.items()}
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        method = "GET" if body == b"" else "POST"
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items()) + "\r\n"
        writer.write(head.encode() + raw)
        return reader, writer

    async def post(self, path: str, body: Any, **headers: str) -> Reply:
        async with asyncio.timeout(60):
            reader, writer = await self.open(path, body, **headers)
            try:
                return await read_reply(reader)
            finally:
                writer.close()

    async def chat(self, conversation: str | None = None, stream: bool = True, **fields: Any) -> Reply:
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": stream, **fields}
        return await self.post(
            "/v1/chat/completions", body | ({"conversation_id": conversation} if conversation else {})
        )

    async def get(self, path: str) -> Reply:
        return await self.post(path, b"")

    async def is_ready(self) -> bool:
        """False also while nothing listens yet."""
        try:
            return (await self.get("/ready")).status == 200
        except (OSError, asyncio.IncompleteReadError):
            return False

    async def metric(self, name: str, **labels: str) -> float:
        return total((await self.get("/metrics")).body.decode(), name, **labels)


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
    status = int(head[0].split(" ")[1])
    body = bytearray()
    try:
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readline() or b"x", 16):
                body += await reader.readexactly(size)
                await reader.readexactly(2)
        else:
            body += await reader.readexactly(int(headers["content-length"]))
    except (ValueError, asyncio.IncompleteReadError, ConnectionError):
        return Reply(status, headers, bytes(body), False)
    return Reply(status, headers, bytes(body), True)


@dataclass
class System:
    prefill: list[FakeEngine]
    decode: list[FakeEngine]
    router: Router
    client: Client

    async def settle(self) -> None:
        """Until every engine that is up has been seen so."""
        engines = len(self.prefill) + len(self.decode)
        await self.until(lambda: sum(node.healthy for node in self.router.nodes.all) == engines)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0.01)


Start = Callable[..., Awaitable[System]]


@asynccontextmanager
async def serving(router: Router) -> AsyncIterator[int]:
    """`router` on a port of its own, with uvicorn's protocol as in production.

    Without uvicorn's server, which looks ten times a second whether it should stop; test_main has the whole.
    """
    config = uvicorn.Config(router, http=LimitedProtocol, log_config=None, timeout_keep_alive=75)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    async with router.running():
        server = await loop.create_server(lambda: LimitedProtocol(config, state, {}), "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for connection in tuple(state.connections):
                connection.transport.abort()  # type: ignore[union-attr]
            await asyncio.gather(*state.tasks, return_exceptions=True)


QUICK = {"health_interval": 0.1, "connect_timeout": 1.0}
"""Tunables with which a test waits for little."""


class Stage:
    """What a test starts, each ended with it."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def prefill(self, host: str = "127.0.0.1") -> FakeEngine:
        return await self._engine(FakeEngine(prefill_script, host))

    async def decode(self, params: Any = None, host: str = "127.0.0.1") -> FakeEngine:
        """`params`: the handle it returns."""
        return await self._engine(FakeEngine(decode_script(params), host))

    async def _engine(self, engine: FakeEngine) -> FakeEngine:
        await engine.start()
        self._stack.push_async_callback(engine.stop)
        return engine

    async def router(
        self, source: Source, prefill: list[FakeEngine], decode: list[FakeEngine], live: Live | None = None
    ) -> System:
        router = Router(source, live or Live(QUICK))
        port = await self._stack.enter_async_context(serving(router))
        return System(prefill, decode, router, Client(port))


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        yield Stage(stack)


@pytest.fixture
async def start(stage: Stage) -> Start:
    """`await start(prefill=1, decode=1, **tunables)` gives a running `System`; with `file`, that of the tunables."""

    async def started(prefill: int = 1, decode: int = 1, file: Path | None = None, **values: Any) -> System:
        prefills = [await stage.prefill() for _ in range(prefill)]
        decodes = [await stage.decode() for _ in range(decode)]
        source = Static((engine.url for engine in prefills), (engine.url for engine in decodes))
        live = Live({**QUICK, **values}, file)
        live.load()
        system = await stage.router(source, prefills, decodes, live)
        await system.settle()
        return system

    return started


@pytest.fixture
async def system(start: Start) -> System:
    return await start()
