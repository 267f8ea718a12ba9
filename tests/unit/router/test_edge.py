"""What a client may send and what it gets where a turn does not begin: limits, headers, paths, and clients that stall."""

import asyncio
import contextlib
import json

import pytest

from router import client as client_side
from router import protocol
from tests.fakes.engine import DONE, TEXT, Request, Wire
from tests.unit.router.conftest import System, read_reply

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}


async def raw(system: System, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", system.client.port)
    writer.write(data)
    return reader, writer


@pytest.mark.parametrize(
    "head",
    [
        b"".join(b"x-%d: 1\r\n" % number for number in range(protocol.MOST_HEADERS + 1)) + b"\r\n",
        b"x: " + b"y" * protocol.MOST_HEADER_BYTES + b"\r\n\r\n",
        b"x: " + b"y" * protocol.MOST_HEADER_BYTES,
    ],
)
async def test_headers_beyond_the_limits_get_431(system: System, head: bytes) -> None:
    reader, writer = await raw(system, b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n" + head)
    async with asyncio.timeout(20):
        reply = await read_reply(reader)
        assert reply.status == 431 and "65536" in reply.json["error"]["message"]
        with contextlib.suppress(ConnectionResetError):  # some of the head may be unread
            assert await reader.read() == b""
    writer.transport.abort()


async def test_many_headers_within_the_limits_pass(system: System) -> None:
    many = {f"x_{number}": "y" * 500 for number in range(protocol.MOST_HEADERS - 10)}
    assert (await system.client.post("/v1/chat/completions", CHAT, **many)).status == 200


async def test_headers_that_do_not_end_are_cut_off(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LONGEST_HEADER_SECONDS", 0.2)
    reader, writer = await raw(system, b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nx")
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    writer.transport.abort()


async def test_an_answer_may_last_longer_than_headers(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LONGEST_HEADER_SECONDS", 0.1)

    async def slow(_: Request, wire: Wire) -> None:
        await wire.start_stream()
        await asyncio.sleep(0.4)
        await wire.part(TEXT + DONE)
        await wire.end_stream()

    system.decode[0].script = slow
    assert (await system.client.chat()).body == TEXT + DONE


async def test_a_body_that_does_not_come_gets_408(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_side, "_LONGEST_SILENCE", 0.2)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n{"
    reader, writer = await raw(system, head)
    async with asyncio.timeout(20):
        assert (await read_reply(reader)).status == 408
    writer.transport.abort()


async def test_a_client_that_takes_nothing_holds_no_engine(
    system: System, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_side, "_LONGEST_SILENCE", 0.3)
    sent = 0

    async def endless(request: Request, wire: Wire) -> None:
        nonlocal sent
        await wire.start_stream()
        while not request.closed.is_set():
            await wire.part(TEXT * 1000)
            sent += len(TEXT) * 1000

    system.decode[0].script = endless
    _, writer = await system.client.open("/v1/chat/completions", CHAT)
    while not system.decode[0].requests:
        await asyncio.sleep(0.01)
    async with asyncio.timeout(20):
        await system.decode[0].requests[0].closed.wait()
    # What fits into the sockets' own buffers, not all that decode could make in this time.
    assert sent < 64 * 1024 * 1024
    assert not [record for record in caplog.records if record.name == "router" and record.levelname == "ERROR"]
    writer.transport.abort()


async def test_a_path_that_is_not_served_says_what_is(system: System) -> None:
    reply = await system.client.post("/v1/embeddings", {"model": "m"})
    assert reply.status == 404 and "/v1/chat/completions" in reply.json["error"]["message"]
    assert reply.json["error"]["code"] == 404


async def test_models_are_asked_for_with_the_clients_own_key(system: System) -> None:
    async def script(_: Request, wire: Wire) -> None:
        await wire.json(200, {"object": "list", "data": []})

    system.decode[0].script = script
    await system.client.post("/v1/models", b"", authorization="Bearer client-1", x_data_parallel_rank="1")
    headers = system.decode[0].requests[0].headers
    assert headers["authorization"] == "Bearer client-1" and "x-data-parallel-rank" not in headers


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"\xff"}',
        b'{"messages":"\xff"}',
        b'{"model":"\\ud800"}',
        b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"extra_args":' + b'{"a":' * 700 + b"1" + b"}" * 700 + b"}",
        b'{"conversation_id":["a"]}',
        b'{"stream":{}}',
    ],
)
async def test_hostile_bodies_get_400(system: System, body: bytes) -> None:
    reply = await system.client.post("/v1/chat/completions", body)
    assert reply.status == 400 and reply.json["error"]["message"]
    assert not system.prefill[0].requests


async def test_two_ids_that_disagree_get_400(system: System) -> None:
    body = CHAT | {"conversation_id": "a"}
    reply = await system.client.post("/v1/chat/completions", body, x_conversation_id="b")
    assert reply.status == 400 and "differ" in reply.json["error"]["message"]
    assert json.loads((await system.client.get("/ready")).body)["status"] == "ready"
