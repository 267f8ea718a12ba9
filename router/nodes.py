"""The table of engines: which are healthy, which engine id each has, how much work each holds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from router.handle import Handle
from router.upstream import Client, ConnectError, NotSent, UpstreamError

logger = logging.getLogger("router")

# An engine on a busy machine answers /health late; a refused connection is certain, silence only after several times.
_SLOW_ANSWERS = 3
_HEALTH_TIMEOUT = 5.0
_MOST_HEALTH_BYTES = 64 * 1024


@dataclass(slots=True, eq=False)
class Node:
    """One engine. `name` is its place in the command line (prefill-0), the only name that logs and metrics show."""

    name: str
    role: str
    url: str
    client: Client
    healthy: bool = False
    engine_id: str | None = None
    open_requests: int = 0
    open_tokens: int = 0
    slow_answers: int = field(default=0, repr=False)

    @contextmanager
    def busy(self, tokens: int) -> Iterator[None]:
        """Counts a request of about `tokens` prompt tokens as this engine's work."""
        self.open_requests += 1
        self.open_tokens += tokens
        try:
            yield
        finally:
            self.open_requests -= 1
            self.open_tokens -= tokens


class Nodes:
    """Only owner of the table. `on_gone(engine_id)` hears that an engine's process, and so its blocks, are gone."""

    def __init__(
        self, prefill: Sequence[str], decode: Sequence[str], connect_timeout: float, on_gone: Callable[[str], None]
    ) -> None:
        self.prefill = _nodes("prefill", prefill, connect_timeout)
        self.decode = _nodes("decode", decode, connect_timeout)
        self._on_gone = on_gone

    @property
    def all(self) -> list[Node]:
        return [*self.prefill, *self.decode]

    @property
    def secrets(self) -> tuple[bytes, ...]:
        return tuple(name for node in self.all for name in node.client.names)

    def lacking(self) -> list[str]:
        """The roles without a healthy engine; empty when a turn can be served."""
        roles = (("prefill", self.prefill), ("decode", self.decode))
        return [role for role, nodes in roles if not any(node.healthy for node in nodes)]

    def counts(self) -> dict[str, dict[str, int]]:
        """Engines up and down, by role."""
        counts = {}
        for role, nodes in (("prefill", self.prefill), ("decode", self.decode)):
            up = sum(node.healthy for node in nodes)
            counts[role] = {"up": up, "down": len(nodes) - up}
        return counts

    def by_name(self, name: str) -> Node | None:
        return next((node for node in self.all if node.name == name), None)

    def can_read(self, handle: Handle) -> bool:
        """Whether the engine that holds the blocks of `handle` is there to give them."""
        node = self.by_name(handle.node)
        return node is not None and node.healthy

    def failed(self, node: Node, error: UpstreamError) -> None:
        """A request to `node` failed. Without a connection the node is down; only a refused one says that its blocks are gone."""
        if isinstance(error, NotSent):
            self._down(node, str(error), keep_handles=not isinstance(error, ConnectError))

    def saw_engine(self, node: Node, engine_id: str) -> None:
        """`node` answered as `engine_id`; another id than before means that it was restarted."""
        if node.engine_id not in (None, engine_id):
            assert node.engine_id is not None
            logger.warning("engine restarted", extra={"fields": {"node": node.name}})
            self._on_gone(node.engine_id)
        node.engine_id = engine_id

    async def watch(self, node: Node, interval: float) -> None:
        """Polls an engine's /health until cancelled."""
        while True:
            await self._check(node)
            await asyncio.sleep(interval)

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
        if node.engine_id is not None and not keep_handles:
            self._on_gone(node.engine_id)
            node.engine_id = None


def _nodes(role: str, urls: Sequence[str], connect_timeout: float) -> list[Node]:
    return [Node(f"{role}-{i}", role, url, Client(url, connect_timeout)) for i, url in enumerate(urls)]
