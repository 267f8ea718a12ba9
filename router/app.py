"""The composition root: FastAPI for control, plain ASGI on the turn path, built from a source of engines and the live tunables."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi import Response as HttpResponse
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from router import conversation, errors, log, openai
from router.background import Background
from router.client import BrokenOff, Gone, Receive, Reply, Scope, Send, header, read_body, run_until_gone
from router.discovery import Source, follow
from router.errors import EngineFault, Fault
from router.live import Live
from router.metrics import Metrics
from router.nodes import Nodes
from router.placement import lacking_builds, lacking_roles
from router.store import Affinity, HandleStore
from router.turn import Pipeline, Services, Turn
from router.upstream import Headers, UpstreamError

logger = logging.getLogger("router")

_TURN_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})

# Everything else a client sends stays here: an engine trusts some headers, for instance to choose a data-parallel rank.
_FORWARDED = (b"content-type", b"accept", b"authorization", b"traceparent", b"tracestate")
_LONGEST_REQUEST_ID = 128

_SERVED = "POST /v1/chat/completions, POST /v1/completions, GET /v1/models, /health, /ready and /metrics"
_SHUTTING_DOWN = "This router is shutting down. Send the request again."


class Router:
    """The ASGI application."""

    def __init__(self, source: Source, live: Live) -> None:
        """`live` is loaded already: what needs a restart is read here, once."""
        self._source = source
        self._live = live
        limit = live.integer("max_conversations")
        self.metrics = Metrics()
        self.store = HandleStore(lambda: live.number("handle_ttl"), limit, self.metrics.count_handle)
        self.affinity = Affinity(limit)
        self._background = Background()
        self.nodes = Nodes(live, self._background, self.store.drop_engine)
        self.draining = False
        self.open_requests = 0
        self._endings: set[asyncio.Future[None]] = set()
        self._pipeline: Pipeline | None = None
        self._control = _control(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in _TURN_PATHS and scope["method"] == "POST":
            await self._serve(scope, receive, send)
        else:
            await self._control(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Health checks, background releases and what follows engines and tunables live as long as this."""
        self._pipeline = Pipeline(
            Services(self.nodes, self.store, self.affinity, self.metrics, self._live, self._background)
        )
        self._background.start(follow(self._source, self.nodes.accept))
        self._background.start(self._follow_tunables())
        try:
            yield
        finally:
            self._pipeline = None
            await self._background.stop()
            self.nodes.close()

    async def _follow_tunables(self) -> None:
        while True:
            for name in await self._live.next_change():
                self.metrics.tunables_changed.labels(name).inc()
                if name == "log_level":
                    log.set_level(self._live.text(name))

    def break_off(self) -> None:
        """Ends every open request, an answer that has begun with an error event: the end of a drain."""
        for ending in self._endings:
            if not ending.done():
                ending.set_result(None)

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
        except Exception as error:
            await self._tell(error, reply, report)
        finally:
            self.open_requests -= 1
            code = reply.status or 499
            self.metrics.requests.labels(scope["path"], code).inc()
            report |= {"status": code, "ms": round((time.monotonic() - began) * 1000, 1)}
            logger.info("turn", extra={"fields": report})

    async def _tell(self, error: Exception, reply: Reply, report: dict[str, object]) -> None:
        """The client hears of `error`: by a status while that is possible, else by an event that ends the stream."""
        if isinstance(error, Fault):
            fault, text = error, ""
        elif isinstance(error, EngineFault):
            report["fault"] = str(error)
            text = "The answer broke off at the engine. Send the request again."
            fault = errors.fault(502, text)
        elif isinstance(error, BrokenOff):
            fault, text = errors.unavailable(_SHUTTING_DOWN), _SHUTTING_DOWN
        else:
            logger.error("unexpected", extra={"fields": report}, exc_info=error)
            text = "The router failed. Send the request again."
            fault = errors.fault(500, text)
        with contextlib.suppress(Gone):
            await (reply.end(errors.event(text)) if reply.started else reply.answer(fault.answer))

    async def _turn(self, scope: Scope, receive: Receive, reply: Reply, report: dict[str, object]) -> None:
        if self.draining or self._pipeline is None:
            raise errors.unavailable(_SHUTTING_DOWN)
        body = openai.parse(await read_body(scope, receive, self._live.integer("max_body_bytes")))
        authorization = header(scope, b"authorization")
        named = conversation.conversation_id(body.conversation, header(scope, b"x-conversation-id"))
        key = None if named is None else conversation.Key(conversation.caller(authorization), body.model, named)
        headers = [*_forwarded(scope), (b"x-request-id", str(report["request_id"]).encode("latin-1"))]
        report["conversation_id"] = named
        turn = Turn(scope["path"].encode(), body, headers, key, time.monotonic(), report)
        ending = asyncio.get_running_loop().create_future()
        self._endings.add(ending)
        try:
            await run_until_gone(self._pipeline.run(turn, reply), receive, ending)
        finally:
            self._endings.discard(ending)


def _forwarded(scope: Scope) -> Headers:
    return [(name, value) for name, value in scope["headers"] if name in _FORWARDED]


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
        nodes, engines = router.nodes, router.nodes.counts()
        lacking = lacking_roles(nodes.prefill, nodes.decode) or lacking_builds(nodes.prefill, nodes.decode)
        if router.draining:
            return JSONResponse({"status": "draining", "engines": engines}, 503)
        if lacking:
            return JSONResponse({"status": "waiting", "lacking": lacking, "engines": engines}, 503)
        return JSONResponse({"status": "ready", "engines": engines})

    @app.get("/metrics")
    async def metrics() -> HttpResponse:
        router.metrics.stored.set(len(router.store))
        router.metrics.open_requests.set(router.open_requests)
        for role, counts in router.nodes.counts().items():
            for state, number in counts.items():
                router.metrics.engines.labels(role, state).set(number)
        return HttpResponse(generate_latest(router.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/models")
    async def models(request: Request) -> HttpResponse:
        return await _models(router, _forwarded(request.scope))

    @app.exception_handler(HTTPException)
    async def not_served(_: Request, error: HTTPException) -> HttpResponse:
        text = f"{error.detail}. This router serves {_SERVED}."
        body = errors.body(error.status_code, text)
        return HttpResponse(body, error.status_code, error.headers, "application/json")

    return app


async def _models(router: Router, headers: Headers) -> HttpResponse:
    for node in router.nodes.decode:
        if not node.serving:
            continue
        with contextlib.suppress(UpstreamError):
            answer = await node.client.request(b"GET", b"/v1/models", headers, b"", timeout=10, idle_timeout=10)
            try:
                return HttpResponse(await answer.read_all(1 << 20), answer.status, media_type="application/json")
            finally:
                answer.close()
    fault = errors.unavailable("No decode engine is ready. Try again shortly.")
    return HttpResponse(fault.answer.body, 503, {"retry-after": "1"}, "application/json")
