"""One turn: key, take, place, prefill, decode, keep.

State that outlives a turn is in `HandleStore`, `Affinity` and `Nodes`; a `Turn` holds what belongs to one request.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from router import errors, handle, openai, sse
from router.background import Background
from router.client import Reply
from router.conversation import Key
from router.errors import EngineFault
from router.handle import Handle
from router.metrics import Metrics
from router.nodes import Node, Nodes
from router.placement import choose_decode, choose_prefill, estimated_tokens
from router.store import Affinity, HandleStore
from router.upstream import Headers, NotSent, Response, UpstreamError
from runtime.parameters import Tunables

# Larger than any answer of an engine that is in order: 100,000 tokens with log-probabilities of 20 candidates each.
_LONGEST_ANSWER = 512 * 1024 * 1024

# Ends that leave no usable KV behind.
_BAD_ENDS = frozenset({"error", "abort"})


@dataclass(slots=True)
class Turn:
    """One request as it goes through the router."""

    endpoint: bytes
    body: openai.Body
    headers: Headers
    key: Key | None
    started: float
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return estimated_tokens(self.body.size)


@dataclass(frozen=True, slots=True)
class Services:
    """What every turn shares, built once by the composition root."""

    nodes: Nodes
    store: HandleStore
    affinity: Affinity
    metrics: Metrics
    tunables: Tunables
    background: Background
    answers: set[Response]
    """Decode's answers that are on their way to clients."""


class Pipeline:
    """Takes a turn through prefill and decode, with at most `max_attempts` attempts before the client's first byte."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def run(self, turn: Turn, reply: Reply) -> None:
        """Raises `errors.Fault` before the reply has started; afterwards it ends the stream with an error event."""
        tunables, metrics = self._services.tunables, self._services.metrics
        taken = self._take(turn)
        avoid: set[Node] = set()
        for left in reversed(range(tunables.integer("max_attempts"))):
            try:
                await self._attempt(turn, reply, taken, avoid)
                return
            except EngineFault as fault:
                metrics.upstream_errors.labels(fault.leg).inc()
                turn.report["fault"] = str(fault)
                if reply.started:
                    raise
                if left:
                    metrics.retries.labels(fault.leg).inc()
            # A handle is spent by the first attempt, whatever came of it.
            taken = None
        raise errors.fault(502, "The engines could not finish this request. Send it again.", retry_after=1)

    def _take(self, turn: Turn) -> Handle | None:
        services = self._services
        if turn.key is None or not services.tunables.flag("round_trip"):
            return None
        taken = services.store.take(turn.key, time.monotonic())
        if taken is None:
            return None
        node = services.nodes.by_name(taken.node)
        if node is None or not node.healthy:
            services.metrics.count_handle("engine_gone", 1)
            return None
        return taken

    async def _attempt(self, turn: Turn, reply: Reply, taken: Handle | None, avoid: set[Node]) -> None:
        services = self._services
        sticky = services.affinity.get(turn.key) if turn.key is not None else None
        lacking = services.nodes.lacking()
        decode = choose_decode(services.nodes.decode, sticky, avoid)
        prefill = choose_prefill(services.nodes.prefill, avoid)
        if decode is None or prefill is None:
            raise errors.unavailable(f"No {' and no '.join(lacking)} engine is ready. Try again shortly.")
        params = None
        if not openai.skips_prefill(turn.body):
            params = await self._prefill(turn, prefill, taken, avoid)
        try:
            await self._decode(turn, reply, decode, params, avoid)
        except NotSent:
            if params is not None:
                services.metrics.stranded.inc()
                services.background.start(self._release(turn, params, avoid))
            raise EngineFault(decode.role, "could not be reached") from None

    async def _prefill(self, turn: Turn, node: Node, taken: Handle | None, avoid: set[Node]) -> dict[str, Any] | None:
        """Prefill's `kv_transfer_params`, None when it named no blocks."""
        services = self._services
        began = time.monotonic()
        timeout = services.tunables.number("prefill_timeout")
        body = openai.for_prefill(turn.body, handle.for_prefill(taken))
        with node.busy(turn.tokens):
            answer = await self._ask(turn, node, body, timeout, avoid)
            try:
                raw = await answer.read_all(_LONGEST_ANSWER)
            except UpstreamError as error:
                raise self._failed(node, error, avoid) from None
            finally:
                answer.close()
        turn.report["prefill_ms"] = _ms(began)
        services.metrics.prefill.observe(time.monotonic() - began)
        try:
            fields = msgspec.json.decode(raw, type=dict[str, Any])
        except msgspec.DecodeError:
            avoid.add(node)
            raise EngineFault(node.role, "answer is not a JSON object") from None
        self._count_prefill(turn, fields)
        params = fields.get(handle.KEY)
        if isinstance(params, dict) and params.get("remote_block_ids"):
            services.nodes.saw_engine(node, str(params.get("remote_engine_id")))
            return params
        services.metrics.without_params.inc()
        return None

    def _count_prefill(self, turn: Turn, fields: dict[str, Any]) -> None:
        metrics = self._services.metrics
        usage, params = fields.get("usage"), fields.get(handle.KEY)
        prompt_tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        ours = params.get("kvr") if isinstance(params, dict) else None
        ours = ours if isinstance(ours, dict) else {}
        pulled = ours.get("pulled_tokens") or 0
        if isinstance(prompt_tokens, int):
            metrics.prompt_tokens.inc(prompt_tokens)
            turn.report["prompt_tokens"] = prompt_tokens
        metrics.pulled_tokens.inc(pulled)
        turn.report["pulled_tokens"] = pulled
        if ours.get("refused"):
            metrics.refused.labels(str(ours["refused"])).inc()
            turn.report["refused"] = ours["refused"]

    async def _release(self, turn: Turn, params: dict[str, Any], avoid: set[Node]) -> None:
        """Prefill holds blocks for a decode engine that never heard of them; another one fetches them, so that they are freed."""
        node = choose_decode(self._services.nodes.decode, None, avoid)
        if node is None or node in avoid:
            return  # prefill's own lease frees them
        timeout = self._services.tunables.number("connect_timeout")
        body = openai.for_release(turn.body, params)
        try:
            answer = await node.client.request(
                b"POST", turn.endpoint, turn.headers, body, timeout=timeout, idle_timeout=timeout
            )
        except UpstreamError:
            return
        answer.close()
        self._services.metrics.released.inc()

    async def _decode(
        self, turn: Turn, reply: Reply, node: Node, params: dict[str, Any] | None, avoid: set[Node]
    ) -> None:
        services = self._services
        began = time.monotonic()
        with node.busy(turn.tokens):
            body = openai.for_decode(turn.body, params)
            answer = await self._ask(turn, node, body, services.tunables.number("decode_idle_timeout"), avoid)
            services.answers.add(answer)
            try:
                first = await answer.read()
                turn.report["decode_ms"] = _ms(began)
                services.metrics.decode_first_byte.observe(time.monotonic() - began)
                reuse = "pulled" if turn.report.get("pulled_tokens") else "cold"
                services.metrics.ttft.labels(reuse).observe(time.monotonic() - turn.started)
                turn.report["ttft_ms"] = _ms(turn.started)
                if turn.key is not None:
                    services.affinity.set(turn.key, node.name)
                keeper = _Keeper(services, turn.key, node)
                if (answer.header(b"content-type") or b"").startswith(b"text/event-stream"):
                    await self._stream(reply, answer, first, keeper)
                else:
                    await self._whole(reply, answer, first, keeper)
            except sse.TooLong:
                raise EngineFault(node.role, "an event without end") from None
            except UpstreamError as error:
                raise self._failed(node, error, avoid) from None
            finally:
                services.answers.discard(answer)
                answer.close()

    async def _stream(self, reply: Reply, answer: Response, first: bytes, keeper: _Keeper) -> None:
        splitter = sse.Splitter()
        if not first:
            raise UpstreamError("an empty stream")
        await reply.start(200, b"text/event-stream; charset=utf-8")
        part = first
        while part:
            out = [keeper.passed(event) for event in splitter.feed(part)]
            if any(out):
                await reply.part(b"".join(out))
            part = await answer.read()
        last = keeper.passed(splitter.rest(), cut=True)
        keeper.finished()
        await reply.end(last)

    async def _whole(self, reply: Reply, answer: Response, first: bytes, keeper: _Keeper) -> None:
        raw = first + await answer.read_all(_LONGEST_ANSWER)
        try:
            fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        except msgspec.DecodeError:
            raise UpstreamError("answer is not a JSON object") from None
        if handle.KEY in fields:
            keeper.saw(msgspec.json.decode(raw, type=dict[str, Any]))
            del fields[handle.KEY]
            raw = msgspec.json.encode(fields)
        keeper.finished()
        await reply.whole(200, raw)

    async def _ask(self, turn: Turn, node: Node, body: bytes, timeout: float, avoid: set[Node]) -> Response:
        """A response of status 200. Raises `Fault` for a refusal that is the client's matter, else `EngineFault`."""
        try:
            answer = await node.client.request(
                b"POST", turn.endpoint, turn.headers, body, timeout=timeout, idle_timeout=timeout
            )
        except UpstreamError as error:
            failed = self._failed(node, error, avoid)
            if isinstance(error, NotSent) and node.role == "decode":
                raise
            raise failed from None
        if answer.status == 200:
            return answer
        try:
            raw = await answer.read_all(_LONGEST_ANSWER)
        except UpstreamError as error:
            raise self._failed(node, error, avoid) from None
        finally:
            answer.close()
        if 400 <= answer.status < 500:
            raise errors.passed_on(answer.status, raw, (*self._services.nodes.secrets, handle.KEY_BYTES))
        avoid.add(node)
        raise EngineFault(node.role, f"status {answer.status}")

    def _failed(self, node: Node, error: UpstreamError, avoid: set[Node]) -> EngineFault:
        avoid.add(node)
        self._services.nodes.failed(node, error)
        return EngineFault(node.role, str(error))


class _Keeper:
    """Takes the handle out of decode's answer and stores it when, and only when, the answer came to a good end."""

    def __init__(self, services: Services, key: Key | None, node: Node) -> None:
        self._services = services
        self._key = key
        self._node = node
        self._handle: Handle | None = None
        self._is_bad = False
        self._done = False

    def passed(self, event: bytes, cut: bool = False) -> bytes:
        """What of `event` the client may see. `cut`: the stream ended inside it."""
        visible, fields = sse.without_field(event, handle.KEY)
        if fields is not None:
            self.saw(fields)
        elif cut and handle.KEY_BYTES in visible:
            return b""
        if b"[DONE]" in visible and sse.data(visible) == b"[DONE]":
            # Stored before the client can know that the turn is over and send the next one.
            self.finished()
        return visible

    def saw(self, fields: dict[str, Any]) -> None:
        params = fields.get(handle.KEY)
        if any(choice.get("finish_reason") in _BAD_ENDS for choice in fields.get("choices") or ()):
            self._is_bad = True
        if params is None:
            return
        self._handle = handle.parse(params, self._node.name)
        if self._handle is None:
            self._services.metrics.count_handle("invalid", 1)
            self._is_bad = True

    def finished(self) -> None:
        if self._done:
            return
        self._done = True
        services = self._services
        if self._handle is not None:
            services.nodes.saw_engine(self._node, self._handle.engine_id)
        if self._key is None or not services.tunables.flag("round_trip"):
            return
        if self._handle is None or self._is_bad:
            if self._handle is None and not self._is_bad:
                services.metrics.count_handle("absent", 1)
            services.store.drop(self._key)
            return
        services.store.put(self._key, self._handle, time.monotonic())


def _ms(since: float) -> float:
    return round((time.monotonic() - since) * 1000, 1)
