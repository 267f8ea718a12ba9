"""Prefill's blocks when decode does not follow, and requests that must not go out twice."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from router.upstream import Client, UpstreamError
from tests.fakes.engine import DONE, FINISH, TEXT, FakeEngine, Request, Wire, prefill_script
from tests.unit.router.conftest import Start, System
from tests.unit.router.test_turn import CHAT, sent_handles


@asynccontextmanager
async def unreachable(engine: FakeEngine) -> AsyncIterator[None]:
    """`engine` as a host that answers no connection: packets to a full backlog are dropped."""
    await engine.stop()
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", engine.port))
    listener.listen(0)
    fill = [socket.socket() for _ in range(4)]
    for connection in fill:
        connection.setblocking(False)
        connection.connect_ex(("127.0.0.1", engine.port))
    await asyncio.sleep(0.05)
    try:
        yield
    finally:
        for connection in (*fill, listener):
            connection.close()


async def counted(system: System, name: str) -> float:
    async with asyncio.timeout(20):
        while not (value := await system.client.metric(name)):
            await asyncio.sleep(0.02)
    return value


async def test_rep_11_a_client_that_leaves_before_decode_has_the_request_leaves_no_blocks(start: Start) -> None:
    system = await start(decode=2, health_interval=30.0, connect_timeout=20.0)
    first, second = system.decode
    system.router.nodes.decode[1].open_requests = 1
    async with unreachable(first):
        _, writer = await system.client.open("/v1/chat/completions", CHAT)
        while not system.router.nodes.decode[0].open_requests:  # prefill has answered; the router connects to decode
            await asyncio.sleep(0.01)
        system.router.nodes.decode[0].open_requests = 5
        writer.transport.abort()
        assert await counted(system, "kvr_stranded_prefills_total") == 1
        assert await counted(system, "kvr_released_prefills_total") == 1
    (release,) = second.bodies
    assert release["max_tokens"] == 1 and release["kv_transfer_params"]["remote_request_id"] == "rp"
    assert "stream" not in release


async def test_rep_11_a_client_that_leaves_just_after_prefill_is_seen_by_decode(system: System) -> None:
    leave = asyncio.Event()

    async def answers(request: Request, wire: Wire) -> None:
        await prefill_script(request, wire)
        leave.set()

    async def waits(request: Request, _: Wire) -> None:
        await request.closed.wait()

    system.prefill[0].script, system.decode[0].script = answers, waits
    _, writer = await system.client.open("/v1/chat/completions", CHAT)
    await leave.wait()
    writer.transport.abort()
    async with asyncio.timeout(20):
        while not system.decode[0].requests:
            await asyncio.sleep(0.01)
        await system.decode[0].requests[0].closed.wait()
    assert await system.client.metric("kvr_stranded_prefills_total") == 0


async def test_what_decode_has_heard_of_is_not_fetched_again(start: Start) -> None:
    """A second fetch could read blocks that prefill has given to another prompt since."""
    system = await start(decode=2, max_attempts=1)

    async def fails(_: Request, wire: Wire) -> None:
        await wire.json(500, {})

    for engine in system.decode:
        engine.script = fails
    assert (await system.client.chat()).status == 502
    await asyncio.sleep(0.1)
    assert sum(len(engine.requests) for engine in system.decode) == 1
    assert await system.client.metric("kvr_stranded_prefills_total") == 0


async def test_rep_02_a_request_with_a_handle_goes_out_once_on_a_connection_that_dies(system: System) -> None:
    async def dies(_: Request, wire: Wire) -> None:
        system.prefill[0].script = prefill_script
        wire.cut()

    await system.client.chat("c")
    system.prefill[0].script = dies
    assert (await system.client.chat("c")).body == TEXT + FINISH + DONE
    assert sent_handles(system) == [None, "e1", None]


async def test_a_repeatable_request_is_sent_again_on_a_fresh_connection_and_only_once() -> None:
    async def good(_: Request, wire: Wire) -> None:
        await wire.json(200, {})

    async def dies(_: Request, wire: Wire) -> None:
        wire.cut()

    engine = FakeEngine(good)
    await engine.start()
    client = Client(engine.url, connect_timeout=lambda: 1)

    async def ask() -> int:
        answer = await client.request(b"POST", b"/x", (), b"", timeout=2, idle_timeout=2)
        await answer.read_all(100)
        answer.close()
        return answer.status

    assert await ask() == 200
    engine.script = dies
    try:
        await ask()
        raise AssertionError("an answer from an engine that gives none")
    except UpstreamError:
        assert len(engine.requests) == 3
    client.close()
    await engine.stop()


async def test_bytes_after_an_answer_belong_to_no_other_request() -> None:
    async def says_too_much(_: Request, wire: Wire) -> None:
        answer = b"HTTP/1.1 200 X\r\ncontent-length: 2\r\n\r\n{}"
        await wire.send(answer + answer.replace(b"{}", b"[]"))

    engine = FakeEngine(says_too_much)
    await engine.start()
    client = Client(engine.url, connect_timeout=lambda: 1)
    for _ in range(2):
        answer = await client.request(b"POST", b"/x", (), b"", timeout=2, idle_timeout=2)
        assert await answer.read_all(100) == b"{}"
        answer.close()
        assert not client._idle
    await engine.stop()
