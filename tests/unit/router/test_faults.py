"""A turn that goes wrong: refusals, broken engines, retries, clients that leave."""

import asyncio
import json

import pytest

from tests.fakes.engine import (
    DONE,
    FINISH,
    TEXT,
    Request,
    Wire,
    decode_script,
    prefill_script,
)
from tests.unit.router.conftest import Start, System
from tests.unit.router.test_turn import CHAT, answers, sent_handles

ERROR_400 = {"error": {"message": "prompt is too long", "code": 400}}


async def test_rep_21_a_refusal_of_decode_reaches_the_client_as_it_is(system: System) -> None:
    system.decode[0].script = lambda _, wire: answers(wire, 400, ERROR_400)
    reply = await system.client.chat("c")
    assert (reply.status, reply.json) == (400, ERROR_400)
    assert len(system.decode[0].requests) == 1


async def test_rep_21_a_refusal_of_prefill_ends_the_turn_before_decode(system: System) -> None:
    system.prefill[0].script = lambda _, wire: answers(wire, 404, {"error": {"message": "no such model"}})
    reply = await system.client.chat("c")
    assert reply.status == 404 and not system.decode[0].requests


@pytest.mark.parametrize("leg", ["prefill", "decode"])
@pytest.mark.parametrize("body", [b"not json", b"[1]", b""])
async def test_rep_21_an_answer_that_is_not_json_is_a_502(system: System, leg: str, body: bytes) -> None:
    engine = getattr(system, leg)[0]
    engine.script = lambda _, wire: answers(wire, 200, body)
    reply = await system.client.chat("c", stream=False)
    assert reply.status == 502 and "error" in reply.json


async def test_rep_21_prefill_that_names_no_blocks_lets_decode_compute(system: System) -> None:
    system.prefill[0].script = lambda _, wire: answers(wire, 200, {"choices": []})
    reply = await system.client.chat("c")
    assert reply.status == 200
    assert "kv_transfer_params" not in system.decode[0].bodies[0]
    assert await system.client.metric("kvr_prefills_without_params_total") == 1


async def test_rep_21_a_prefill_that_hangs_is_left_after_its_time(start: Start) -> None:
    system = await start(prefill_timeout=0.2)

    async def hangs(request: Request, _: Wire) -> None:
        await request.closed.wait()

    system.prefill[0].script = hangs
    reply = await system.client.chat("c")
    assert reply.status == 502 and not system.decode[0].requests
    assert len(system.prefill[0].requests) == 2


async def test_rep_21_a_stream_that_breaks_ends_with_an_error_event_and_a_whole_body(system: System) -> None:
    async def dies(_: Request, wire: Wire) -> None:
        await wire.start_stream()
        for _ in range(3):
            await wire.part(TEXT)
            await asyncio.sleep(0.01)
        wire.cut()

    system.decode[0].script = dies
    reply = await system.client.chat("c")
    assert reply.status == 200 and reply.is_whole
    assert reply.body.startswith(TEXT * 3) and DONE not in reply.body
    last = json.loads(reply.body[len(TEXT) * 3 :].removeprefix(b"data: "))
    assert last["error"]["code"] == 502
    assert len(system.decode[0].requests) == 1


async def test_rep_21_an_error_object_as_the_first_event_passes(system: System) -> None:
    event = b'data: {"error":{"message":"x"}}\n\n'
    system.decode[0].script = decode_script(events=[event, DONE])
    reply = await system.client.chat("c")
    assert reply.body == event + DONE
    assert await system.client.metric("kvr_handles_total", fate="stored") == 0


async def test_rep_22_a_decode_that_fails_once_costs_a_cold_prefill_and_no_text(system: System) -> None:
    good = decode_script()

    async def once(request: Request, wire: Wire) -> None:
        system.decode[0].script = good
        await wire.json(503, {})

    await system.client.chat("c")
    system.decode[0].script = once
    reply = await system.client.chat("c")
    assert reply.body == TEXT + FINISH + DONE
    assert sent_handles(system) == [None, "e1", None]
    assert await system.client.metric("kvr_retries_total", leg="decode") == 1


async def test_rep_22_a_prefill_that_fails_with_a_handle_is_asked_once_more_without(system: System) -> None:
    async def once(request: Request, wire: Wire) -> None:
        system.prefill[0].script = prefill_script
        await wire.json(500, {})

    await system.client.chat("c")
    system.prefill[0].script = once
    assert (await system.client.chat("c")).status == 200
    assert sent_handles(system) == [None, "e1", None]


async def test_rep_22_nothing_is_retried_after_the_first_byte(system: System) -> None:
    async def dies(_: Request, wire: Wire) -> None:
        await wire.start_stream()
        await wire.part(TEXT)
        await asyncio.sleep(0.05)
        wire.cut()

    system.decode[0].script = dies
    await system.client.chat("c")
    assert len(system.decode[0].requests) == len(system.prefill[0].requests) == 1


async def test_rep_22_attempts_stay_within_the_cap(start: Start) -> None:
    system = await start(prefill=2, decode=2, max_attempts=3)
    for engine in system.decode:
        engine.script = lambda _, wire: answers(wire, 500, {})
    reply = await system.client.chat("c")
    assert reply.status == 502
    assert sum(len(engine.requests) for engine in system.decode) == 3


async def test_a_retry_prefers_another_engine(start: Start) -> None:
    system = await start(decode=2)
    for engine in system.decode:
        engine.script = lambda _, wire: answers(wire, 500, {})
    await system.client.chat("c")
    assert [len(engine.requests) for engine in system.decode] == [1, 1]


async def test_no_engine_left_is_a_fast_503_and_not_ready(system: System) -> None:
    assert (await system.client.get("/ready")).status == 200
    await system.decode[0].stop()
    async with asyncio.timeout(20):
        while (await system.client.get("/ready")).status == 200:
            await asyncio.sleep(0.02)
    assert (await system.client.get("/ready")).json == {
        "status": "waiting",
        "lacking": ["decode"],
        "engines": {
            "prefill": {"up": 1, "draining": 0, "down": 0},
            "decode": {"up": 0, "draining": 0, "down": 1},
        },
    }
    reply = await system.client.chat("c")
    assert reply.status == 503 and reply.headers["retry-after"] and "decode" in reply.json["error"]["message"]


async def test_an_engine_that_comes_back_serves_again_and_its_old_handles_are_gone(system: System) -> None:
    await system.client.chat("c")
    await system.decode[0].stop()
    async with asyncio.timeout(20):
        while (await system.client.get("/ready")).status == 200:
            await asyncio.sleep(0.02)
    await system.decode[0].start()
    await system.settle()
    assert (await system.client.chat("c")).status == 200
    assert sent_handles(system) == [None, None]


async def test_a_stranded_prefill_is_released_through_another_decode(start: Start) -> None:
    system = await start(decode=2, health_interval=30.0)
    for node in system.router.nodes.decode:
        node.open_requests = 1 if node.name == "decode-1" else 0
    await system.decode[0].stop()
    assert (await system.client.chat("c")).status == 200
    assert await system.client.metric("kvr_stranded_prefills_total") == 1
    async with asyncio.timeout(20):
        while await system.client.metric("kvr_released_prefills_total") != 1:
            await asyncio.sleep(0.01)


async def leave_while(system: System, seconds: float) -> None:
    _, writer = await system.client.open("/v1/chat/completions", CHAT)
    await asyncio.sleep(seconds)
    writer.close()


async def test_rep_11_a_client_that_leaves_during_prefill_ends_prefill(system: System) -> None:
    async def slow(request: Request, wire: Wire) -> None:
        await request.closed.wait()

    system.prefill[0].script = slow
    await leave_while(system, 0.2)
    async with asyncio.timeout(5):
        await system.prefill[0].requests[0].closed.wait()
    assert not system.decode[0].requests


async def test_rep_11_a_client_that_leaves_mid_stream_ends_decode(system: System) -> None:
    async def endless(request: Request, wire: Wire) -> None:
        await wire.start_stream()
        while not request.closed.is_set():
            await wire.part(TEXT)
            await asyncio.sleep(0.02)

    system.decode[0].script = endless
    reader, writer = await system.client.open("/v1/chat/completions", CHAT | {"conversation_id": "c"})
    await reader.readuntil(TEXT)
    writer.close()
    async with asyncio.timeout(5):
        await system.decode[0].requests[0].closed.wait()
    assert await system.client.metric("kvr_handles_stored") == 0
