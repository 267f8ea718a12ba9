"""The table of engines: which there are, which are healthy, which engine id each has, how much work each holds."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from router.background import Background
from router.discovery import DECODE, PREFILL, Engine, Engines
from router.handle import Handle
from router.live import Live
from router.upstream import Client, ConnectError, NotSent, UpstreamError

logger = logging.getLogger("router")

# An engine on a busy machine answers /health late; a refused connection is certain, silence only after several times.
_SLOW_ANSWERS = 3
_HEALTH_TIMEOUT = 5.0
_MOST_HEALTH_BYTES = 64 * 1024


@dataclass(slots=True, eq=False)
class Node:
    """One engine. `name` is its place in the order of appearance (prefill-0), the only name that clients could see."""

    name: str
    role: str
    url: str
    build: str
    client: Client
    draining: bool = False
    healthy: bool = False
    engine_id: str | None = None
    open_requests: int = 0
    open_tokens: int = 0
    slow_answers: int = field(default=0, repr=False)
    watch: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def key(self) -> tuple[str, str, str]:
        """An engine that differs in one of these is another one."""
        return (self.role, self.url, self.build)

    @property
    def serving(self) -> bool:
        """Whether it may get new turns. The blocks of one that drains can still be read."""
        return self.healthy and not self.draining


class Nodes:
    """Only owner of the table. `on_gone(engine_id)` hears that an engine's process, and so its blocks, are gone."""

    def __init__(self, live: Live, background: Background, on_gone: Callable[[str], None]) -> None:
        self.all: tuple[Node, ...] = ()
        self._live = live
        self._background = background
        self._on_gone = on_gone
        self._leaving: set[Node] = set()
        """No longer in the table, still with open requests."""
        self._named: Counter[str] = Counter()

    @property
    def prefill(self) -> list[Node]:
        return [node for node in self.all if node.role == PREFILL]

    @property
    def decode(self) -> list[Node]:
        return [node for node in self.all if node.role == DECODE]

    @property
    def secrets(self) -> tuple[bytes, ...]:
        return tuple(name for node in (*self.all, *self._leaving) for name in node.client.names)

    def counts(self) -> dict[str, dict[str, int]]:
        """Engines by role and state."""
        counts = {}
        for role, nodes in ((PREFILL, self.prefill), (DECODE, self.decode)):
            up = sum(node.healthy for node in nodes)
            serving = sum(node.serving for node in nodes)
            counts[role] = {"up": serving, "draining": up - serving, "down": len(nodes) - up}
        return counts

    def by_name(self, name: str | None) -> Node | None:
        return next((node for node in self.all if node.name == name), None)

    def accept(self, engines: Engines) -> None:
        """Makes `engines` the table: new ones are watched from now on, ones that are missing get nothing more."""
        listed = {(engine.role, engine.url, engine.build): engine for engine in engines}
        stayed = {node.key: node for node in self.all if node.key in listed}
        left = [node for node in self.all if node.key not in listed]
        joined = [self._joined(engine) for key, engine in listed.items() if key not in stayed]
        self.all = (*stayed.values(), *joined)
        for key, node in stayed.items():
            self._set_draining(node, listed[key].draining)
        for node in left:
            self._leave(node)

    def _joined(self, engine: Engine) -> Node:
        name = f"{engine.role}-{self._named[engine.role]}"
        self._named[engine.role] += 1
        client = Client(engine.url, lambda: self._live.number("connect_timeout"))
        node = Node(name, engine.role, engine.url, engine.build, client, engine.draining)
        fields = {"node": name, "url": engine.url, "build": engine.build, "draining": engine.draining}
        logger.info("engine joined", extra={"fields": fields})
        node.watch = self._background.start(self._watch(node))
        return node

    def _set_draining(self, node: Node, draining: bool) -> None:
        if node.draining != draining:
            node.draining = draining
            event = "engine drains" if draining else "engine drains no more"
            logger.info(event, extra={"fields": {"node": node.name}})

    def _leave(self, node: Node) -> None:
        logger.info("engine left", extra={"fields": {"node": node.name, "open_requests": node.open_requests}})
        if node.watch is not None:
            node.watch.cancel()
        if not node.healthy:
            self._forget(node)
        node.healthy = False
        if node.open_requests:
            self._leaving.add(node)
        else:
            self._see_off(node)

    def _see_off(self, node: Node) -> None:
        self._leaving.discard(node)
        self._forget(node)
        node.client.close()

    def _forget(self, node: Node) -> None:
        """Its blocks are gone, or nobody is to read them any more."""
        if node.engine_id is not None:
            self._on_gone(node.engine_id)
            node.engine_id = None

    def close(self) -> None:
        for node in (*self.all, *self._leaving):
            node.client.close()

    @contextmanager
    def busy(self, node: Node, tokens: int) -> Iterator[None]:
        """Counts a request of about `tokens` prompt tokens as this engine's work."""
        node.open_requests += 1
        node.open_tokens += tokens
        try:
            yield
        finally:
            node.open_requests -= 1
            node.open_tokens -= tokens
            if node in self._leaving and not node.open_requests:
                self._see_off(node)

    def unusable(self, handle: Handle, build: str) -> str | None:
        """Why a prefill engine of `build` can't read the blocks of `handle`; None when it can."""
        node = self.by_name(handle.node)
        if node is None or not node.healthy:
            return "engine_gone"
        return None if node.build == build else "other_build"

    def failed(self, node: Node, error: UpstreamError) -> None:
        """A request to `node` failed. Without a connection the node is down; only a refused one says that its blocks are gone."""
        if isinstance(error, NotSent):
            self._down(node, str(error), keep_handles=not isinstance(error, ConnectError))

    def saw_engine(self, node: Node, engine_id: str) -> None:
        """`node` answered as `engine_id`; another id than before means that it was restarted."""
        if node.engine_id not in (None, engine_id):
            logger.warning("engine restarted", extra={"fields": {"node": node.name}})
            self._forget(node)
        node.engine_id = engine_id

    async def _watch(self, node: Node) -> None:
        """Polls an engine's /health until cancelled."""
        while True:
            await self._check(node)
            await self._live.pause("health_interval")

    async def _check(self, node: Node) -> None:
        try:
            response = await node.client.request(
                b"GET", b"/health", (), b"", timeout=_HEALTH_TIMEOUT, idle_timeout=_HEALTH_TIMEOUT
            )
            try:
                await response.read_all(_MOST_HEALTH_BYTES)
            finally:
                response.close()
            if response.status != 200:
                self._down(node, f"/health answered {response.status}", keep_handles=True)
                return
        except ConnectError as error:
            self._down(node, str(error))
            return
        except UpstreamError as error:
            node.slow_answers += 1
            if node.slow_answers >= _SLOW_ANSWERS:
                self._down(node, str(error), keep_handles=True)
            return
        node.slow_answers = 0
        if not node.healthy:
            node.healthy = True
            logger.info("engine is up", extra={"fields": {"node": node.name}})

    def _down(self, node: Node, reason: str, keep_handles: bool = False) -> None:
        if node.healthy:
            logger.warning("engine is down", extra={"fields": {"node": node.name, "reason": reason}})
        node.healthy = False
        if not keep_handles:
            self._forget(node)
