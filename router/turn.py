"""One turn: key, take, place, prefill, decode, keep.

State that outlives a turn is in `HandleStore`, `Affinity` and `Nodes`; a `Turn` holds what belongs to one request.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from router import errors, handle, openai, sse
from router.background import Background
from router.client import Reply
from router.conversation import Key
from router.errors import EngineFault
from router.handle import Handle
from router.keeper import Keeper
from router.live import Live
from router.metrics import Metrics
from router.nodes import Node, Nodes
from router.placement import Pair, choose_decode, choose_pair, estimated_tokens, lacking_roles
from router.store import Affinity, HandleStore
from router.upstream import Delivery, Headers, Response, UpstreamError

# Larger than any answer of an engine that is in order: 100,000 tokens with log-probabilities of 20 candidates each.
_LONGEST_ANSWER = 512 * 1024 * 1024


@dataclass(slots=True)
class Turn:
    """One request as it goes through the router."""

    endpoint: bytes
    body: openai.Body
    headers: Headers
    key: Key | None
    started: float
    report: dict[str, Any] = field(default_factory=dict)
    failed: set[Node] = field(default_factory=set)
    """Engines that failed this turn; another attempt prefers others."""

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
    live: Live
    background: Background


class Pipeline:
    """Takes a turn through prefill and decode, with at most `max_attempts` attempts before the client's first byte."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def run(self, turn: Turn, reply: Reply) -> None:
        """Raises `errors.Fault` before the reply has started, `EngineFault` afterwards: no status can tell it any more."""
        metrics = self._services.metrics
        attempts = self._services.live.integer("max_attempts")
        for attempt in range(1, attempts + 1):
            pair = self._place(turn)
            # A handle is spent by the first attempt, whatever came of it.
            taken = self._take(turn, pair.prefill) if attempt == 1 else None
            try:
                await self._attempt(turn, reply, pair, taken)
                return
            except EngineFault as fault:
                metrics.upstream_errors.labels(fault.leg).inc()
                turn.report["fault"] = str(fault)
                if reply.started:
                    raise
                if attempt < attempts:
                    metrics.retries.labels(fault.leg).inc()
        raise errors.fault(502, "The engines could not finish this request. Send it again.", retry_after=1)

    def _place(self, turn: Turn) -> Pair:
        """Raises a 503 `Fault`."""
        prefill, decode = self._services.nodes.prefill, self._services.nodes.decode
        pair = choose_pair(prefill, decode, self._home(turn), turn.failed)
        if pair is not None:
            return pair
        roles = " and no ".join(lacking_roles(prefill, decode))
        lacking = f"No {roles} engine is" if roles else "No prefill and decode engine of one build are"
        raise errors.unavailable(f"{lacking} ready. Try again shortly.")

    def _take(self, turn: Turn, prefill: Node) -> Handle | None:
        services = self._services
        if turn.key is None or not services.live.flag("round_trip"):
            return None
        return services.store.take(
            turn.key, time.monotonic(), lambda handle: services.nodes.unusable(handle, prefill.build)
        )

    async def _attempt(self, turn: Turn, reply: Reply, pair: Pair, taken: Handle | None) -> None:
        services = self._services
        params = None
        if turn.body.is_prefillable:
            params = await self._prefill(turn, pair.prefill, taken)
        delivery = Delivery()
        try:
            await self._decode(turn, reply, self._still_there(turn, pair), params, delivery)
        finally:
            # Once decode has the request, freeing prefill's blocks is its matter, also when it refuses or loses the client.
            if params is not None and not delivery.sent:
                services.metrics.stranded.inc()
                services.background.start(self._release(turn, pair.prefill.build, params))

    def _still_there(self, turn: Turn, pair: Pair) -> Node:
        """The decode engine of `pair`, or another of its build if it left the table while prefill worked."""
        nodes = self._services.nodes
        if pair.decode in nodes.all:
            return pair.decode
        node = choose_decode(nodes.decode, pair.prefill.build, None, turn.failed)
        if node is None:
            raise EngineFault(pair.decode.role, "left while prefill worked, and no other of its build serves")
        return node

    def _home(self, turn: Turn) -> Node | None:
        """The decode engine that the conversation last used."""
        name = None if turn.key is None else self._services.affinity.get(turn.key)
        return self._services.nodes.by_name(name)

    async def _prefill(self, turn: Turn, node: Node, taken: Handle | None) -> dict[str, Any] | None:
        """Prefill's `kv_transfer_params`, None when it named no blocks."""
        services = self._services
        began = time.monotonic()
        given = handle.for_prefill(taken)
        with services.nodes.busy(node, turn.tokens):
            timeout = services.live.number("prefill_timeout")
            answer = await self._ask(turn, node, openai.for_prefill(turn.body, given), given, timeout)
            raw = await self._read_and_close(turn, node, answer)
        turn.report["prefill_ms"] = _ms(began)
        services.metrics.prefill.observe(time.monotonic() - began)
        try:
            fields = msgspec.json.decode(raw, type=dict[str, Any])
        except msgspec.DecodeError:
            turn.failed.add(node)
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
        pulled = ours.get("pulled_tokens")
        pulled = pulled if isinstance(pulled, int) else 0
        if isinstance(prompt_tokens, int):
            metrics.prompt_tokens.inc(prompt_tokens)
            turn.report["prompt_tokens"] = prompt_tokens
        metrics.pulled_tokens.inc(pulled)
        turn.report["pulled_tokens"] = pulled
        if ours.get("refused"):
            metrics.refused.labels(str(ours["refused"])).inc()
            turn.report["refused"] = ours["refused"]

    async def _release(self, turn: Turn, build: str, params: dict[str, Any]) -> None:
        """Prefill of `build` holds blocks for a request that no decode engine got; one fetches them, which frees them.

        Only for such a request: a second fetch could read blocks that by then hold another prompt.
        """
        node = choose_decode(self._services.nodes.decode, build, self._home(turn), turn.failed)
        if node is None or node in turn.failed:
            return  # prefill's own lease frees them
        timeout = self._services.live.number("connect_timeout")
        body = openai.for_release(turn.body, params)
        try:
            answer = await node.client.request(
                b"POST", turn.endpoint, turn.headers, body, timeout=timeout, idle_timeout=timeout, is_repeatable=False
            )
        except UpstreamError:
            return
        answer.close()
        if answer.status == 200:
            self._services.metrics.released.inc()

    async def _decode(
        self, turn: Turn, reply: Reply, node: Node, params: dict[str, Any] | None, delivery: Delivery
    ) -> None:
        services = self._services
        began = time.monotonic()
        with services.nodes.busy(node, turn.tokens):
            timeout = services.live.number("decode_idle_timeout")
            answer = await self._ask(turn, node, openai.for_decode(turn.body, params), params or {}, timeout, delivery)
            if turn.key is not None:
                services.affinity.set(turn.key, node.name)
            key = turn.key if services.live.flag("round_trip") else None
            keeper = Keeper(services.store, services.nodes, services.metrics, key, node)
            try:
                if (answer.header(b"content-type") or b"").startswith(b"text/event-stream"):
                    await self._stream(turn, reply, answer, keeper, began)
                else:
                    await self._whole(turn, reply, answer, keeper, began)
            except sse.TooLong:
                raise EngineFault(node.role, "an event too long to take the internal field out of") from None
            except UpstreamError as error:
                raise self._failed(turn, node, error) from None
            finally:
                answer.close()

    async def _stream(self, turn: Turn, reply: Reply, answer: Response, keeper: Keeper, began: float) -> None:
        splitter = sse.Splitter(handle.KEY_BYTES)
        part = await answer.read()
        if not part:
            raise UpstreamError("an empty stream")
        await reply.start(200, b"text/event-stream; charset=utf-8")
        is_waiting = True
        while part:
            events = splitter.feed(part)
            if is_waiting and any(map(sse.data, events)):  # comments keep a connection alive, they are no token
                is_waiting = False
                self._note_first(turn, began)
            out = b"".join(map(keeper.passed, events))
            if out:
                await reply.part(out)
            part = await answer.read()
        last = keeper.passed(splitter.rest(), is_cut=True)
        keeper.finished()
        await reply.end(last)

    async def _whole(self, turn: Turn, reply: Reply, answer: Response, keeper: Keeper, began: float) -> None:
        raw = await answer.read_all(_LONGEST_ANSWER)
        self._note_first(turn, began)
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

    def _note_first(self, turn: Turn, began: float) -> None:
        metrics, now = self._services.metrics, time.monotonic()
        turn.report |= {"decode_ms": _ms(began), "ttft_ms": _ms(turn.started)}
        metrics.decode_first_byte.observe(now - began)
        metrics.ttft.labels("pulled" if turn.report.get("pulled_tokens") else "cold").observe(now - turn.started)

    async def _ask(
        self,
        turn: Turn,
        node: Node,
        body: bytes,
        params: Mapping[str, Any],
        timeout: float,
        delivery: Delivery | None = None,
    ) -> Response:
        """A response of status 200. Raises `Fault` for a refusal that is the client's matter, else `EngineFault`.

        `params` are the transfer params in `body`: blocks that they name can be read once, so such a request is sent once.
        """
        is_repeatable = not params.get("remote_block_ids")
        try:
            answer = await node.client.request(
                b"POST", turn.endpoint, turn.headers, body,
                timeout=timeout, idle_timeout=timeout, delivery=delivery, is_repeatable=is_repeatable,
            )  # fmt: skip
        except UpstreamError as error:
            raise self._failed(turn, node, error) from None
        if answer.status == 200:
            return answer
        raw = await self._read_and_close(turn, node, answer)
        if 400 <= answer.status < 500:
            raise errors.passed_on(answer.status, raw, (*self._services.nodes.secrets, *handle.secrets(params)))
        turn.failed.add(node)
        raise EngineFault(node.role, f"status {answer.status}")

    async def _read_and_close(self, turn: Turn, node: Node, answer: Response) -> bytes:
        try:
            return await answer.read_all(_LONGEST_ANSWER)
        except UpstreamError as error:
            raise self._failed(turn, node, error) from None
        finally:
            answer.close()

    def _failed(self, turn: Turn, node: Node, error: UpstreamError) -> EngineFault:
        turn.failed.add(node)
        self._services.nodes.failed(node, error)
        return EngineFault(node.role, str(error))


def _ms(since: float) -> float:
    return round((time.monotonic() - since) * 1000, 1)
