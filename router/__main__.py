"""`python -m router`, with where its engines are: serve until SIGTERM or SIGINT, then drain and leave."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn

from router import log
from router.app import Router
from router.config import Settings, parse
from router.live import Live
from router.protocol import LimitedProtocol

_LAST_WORDS = 2.0


class Server(uvicorn.Server):
    """uvicorn that first refuses new turns, then waits for open ones, and only then stops listening."""

    def __init__(self, config: uvicorn.Config, router: Router, live: Live) -> None:
        super().__init__(config)
        self._router = router
        self._live = live
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not uvicorn's own: that one raises the signal again on the way out, and a router that did as told leaves with 0.
        if self._loop is None or self._router.draining:
            self.should_exit = self.force_exit = True
            return
        self._router.draining = True
        self._loop.call_soon_threadsafe(self._start_drain)

    def _start_drain(self) -> None:
        self._drain = asyncio.ensure_future(self._drained())

    async def _drained(self) -> None:
        await self._until_idle(lambda: self._live.number("drain_timeout"))
        self._router.break_off()
        await self._until_idle(lambda: _LAST_WORDS)
        self.should_exit = True

    async def _until_idle(self, seconds: Callable[[], float]) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        while self._router.open_requests and clock() < began + seconds():
            await asyncio.sleep(0.05)


def listen(settings: Settings) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        sys.exit(
            f"port {settings.port} on {settings.host} can't be used: {error.strerror}. hint: choose another --port"
        )
    return listener


def main() -> None:
    settings = parse(sys.argv[1:], os.environ)
    live = Live(settings.given, settings.tunables_file)
    log.configure(live.text("log_level"))
    live.load()
    log.set_level(live.text("log_level"))
    listener = listen(settings)
    router = Router(settings.source, live)
    config = uvicorn.Config(
        router, http=LimitedProtocol, loop="uvloop", lifespan="on", log_config=None, access_log=False, server_header=False,
        timeout_keep_alive=settings.keep_alive, timeout_graceful_shutdown=5,
    )  # fmt: skip
    server = Server(config, router, live)
    server.run([listener])


if __name__ == "__main__":
    main()
