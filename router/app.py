"""The composition root: FastAPI for control, plain ASGI on the turn path, built from one `Settings`."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi import Response as HttpResponse
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from router import conversation, errors, openai
from router.background import Background
from router.client import Gone, Receive, Reply, Scope, Send, header, read_body, run_until_gone
from router.config import Settings
from router.errors import EngineFault, Fault
from router.metrics import Metrics
from router.nodes import Nodes
from router.store import Affinity, HandleStore
from router.turn import Pipeline, Services, Turn
from router.upstream import Response, UpstreamError

logger = logging.getLogger("router")

_TURN_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})

# Everything else a client sends stays here: an engine trusts some headers, for instance to choose a data-parallel rank.
_FORWARDED = (b"content-type", b"accept", b"authorization", b"traceparent", b"tracestate")
_LONGEST_REQUEST_ID = 128


class Router:
    """The ASGI application."""

    def __init__(self, settings: Settings) -> None:
        self._tunables = settings.tunables
        limit = settings.tunables.integer("max_conversations")
        self.metrics = Metrics()
        self.store = HandleStore(settings.tunables.number("handle_ttl"), limit, self.metrics.count_handle)
        self.affinity = Affinity(limit)
        connect_timeout = settings.tunables.number("connect_timeout")
        self.nodes = Nodes(settings.prefill, settings.decode, connect_timeout, self.store.drop_engine)
        self.draining = False
        self.open_requests = 0
        self._answers: set[Response] = set()
        self._pipeline: Pipeline | None = None
        self._control = _control(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in _TURN_PATHS and scope["method"] == "POST":
            await self._serve(scope, receive, send)
        else:
            await self._control(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Health checks and background releases live as long as this."""
        background = Background()
        self._pipeline = Pipeline(
            Services(self.nodes, self.store, self.affinity, self.metrics, self._tunables, background, self._answers)
        )
        for node in self.nodes.all:
            background.start(self.nodes.watch(node, self._tunables.number("health_interval")))
        try:
            yield
        finally:
            self._pipeline = None
            await background.stop()
            for node in self.nodes.all:
                node.client.close()

    def break_off(self) -> None:
        """Ends every open answer with an error event: the end of a drain."""
        for answer in tuple(self._answers):
            answer.abort()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = _request_id(header(scope, b"x-request-id"))
        reply = Reply(send, request_id)
        report: dict[str, object] = {"request_id": request_id, "endpoint": scope["path"]}
        began = time.monotonic()
        self.open_requests += 1
        try:
            await self._turn(scope, receive, reply, report)
        except Gone:
            report["outcome"] = "client left"
        except Fault as fault:
            await reply.answer(fault.answer)
        except EngineFault as fault:
            report["fault"] = str(fault)
            await reply.end(errors.event("The answer broke off at the engine. Send the request again."))
        except Exception:
            logger.exception("unexpected", extra={"fields": report})
            if reply.started:
                await reply.end(errors.event("The router failed. Send the request again."))
            else:
                await reply.answer(errors.fault(500, "The router failed. Send the request again.").answer)
        finally:
            self.open_requests -= 1
            code = reply.status or 499
            self.metrics.requests.labels(scope["path"], code).inc()
            report |= {"status": code, "ms": round((time.monotonic() - began) * 1000, 1)}
            logger.info("turn", extra={"fields": report})

    async def _turn(self, scope: Scope, receive: Receive, reply: Reply, report: dict[str, object]) -> None:
        if self.draining or self._pipeline is None:
            raise errors.unavailable("This router is shutting down. Send the request again.")
        body = openai.parse(await read_body(scope, receive, self._tunables.integer("max_body_bytes")))
        authorization = header(scope, b"authorization")
        named = conversation.conversation_id(body.conversation, header(scope, b"x-conversation-id"))
        key = None if named is None else conversation.Key(conversation.caller(authorization), body.model, named)
        headers = [(name, value) for name, value in scope["headers"] if name in _FORWARDED]
        headers.append((b"x-request-id", str(report["request_id"]).encode("latin-1")))
        report["conversation_id"] = named
        turn = Turn(scope["path"].encode(), body, headers, key, time.monotonic(), report)
        await run_until_gone(self._pipeline.run(turn, reply), receive)


def _request_id(given: str | None) -> str:
    """Unique even when two clients send the same id; a client's own id stays its beginning, to search logs by."""
    unique = uuid.uuid4().hex
    if given and len(given) <= _LONGEST_REQUEST_ID and given.isascii() and given.isprintable():
        return f"{given}-{unique[:8]}"
    return unique


def _control(router: Router) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with router.running():
            yield

    app = FastAPI(lifespan=lifespan, openapi_url=None)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/ready")
    async def ready() -> JSONResponse:
        lacking = router.nodes.lacking()
        if router.draining:
            return JSONResponse({"status": "draining"}, 503)
        if lacking:
            return JSONResponse({"status": "waiting", "lacking": lacking}, 503)
        return JSONResponse({"status": "ready"})

    @app.get("/metrics")
    async def metrics() -> HttpResponse:
        router.metrics.stored.set(len(router.store))
        router.metrics.open_requests.set(router.open_requests)
        for role, nodes in (("prefill", router.nodes.prefill), ("decode", router.nodes.decode)):
            up = sum(node.healthy for node in nodes)
            router.metrics.engines.labels(role, "up").set(up)
            router.metrics.engines.labels(role, "down").set(len(nodes) - up)
        return HttpResponse(generate_latest(router.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/models")
    async def models() -> HttpResponse:
        for node in router.nodes.decode:
            if not node.healthy:
                continue
            with contextlib.suppress(UpstreamError):
                answer = await node.client.request(b"GET", b"/v1/models", (), b"", timeout=10, idle_timeout=10)
                try:
                    return HttpResponse(await answer.read_all(1 << 20), answer.status, media_type="application/json")
                finally:
                    answer.close()
        fault = errors.unavailable("No decode engine is ready. Try again shortly.")
        return HttpResponse(fault.answer.body, 503, {"retry-after": "1"}, "application/json")

    return app
