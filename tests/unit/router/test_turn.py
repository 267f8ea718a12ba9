"""A turn that goes well: handles, streams, what crosses the edge."""

import asyncio
import json
from typing import Any

import pytest

from tests.fakes.engine import (
    DONE,
    FINISH,
    TEXT,
    Request,
    Wire,
    decode_script,
    handle,
    prefilled,
    with_field,
)
from tests.unit.router.conftest import Start, System, read_reply

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}


def sent_handles(system: System) -> list[str | None]:
    """The engine id of the handle that each prefill request carried, None for a cold one."""
    return [body["kv_transfer_params"]["remote_engine_id"] for engine in system.prefill for body in engine.bodies]


async def answers(wire: Wire, status: int, body: Any) -> None:
    await wire.json(status, body)


async def test_the_second_turn_carries_the_first_ones_handle_with_the_roles_for_prefill(system: System) -> None:
    await system.client.chat("c")
    reply = await system.client.chat("c")
    assert reply.status == 200 and reply.body == TEXT + FINISH + DONE
    assert system.prefill[0].bodies[1]["kv_transfer_params"] == handle() | {
        "do_remote_decode": True,
        "do_remote_prefill": False,
    }
    assert system.decode[0].bodies[1]["kv_transfer_params"] == prefilled(64)
    assert await system.client.metric("kvr_pulled_tokens_total") == 64
    assert await system.client.metric("kvr_prompt_tokens_total") == 200


async def test_the_header_names_the_conversation_too(system: System) -> None:
    for _ in range(2):
        await system.client.post("/v1/chat/completions", CHAT, x_conversation_id="c")
    assert sent_handles(system) == [None, "e1"]
    assert all("x-conversation-id" not in request.headers for request in system.prefill[0].requests)


async def test_without_an_id_no_handle_is_kept(system: System) -> None:
    for _ in range(2):
        await system.client.chat()
    assert sent_handles(system) == [None, None]


async def test_without_the_round_trip_no_handle_is_carried(start: Start) -> None:
    system = await start(round_trip=False)
    for _ in range(2):
        await system.client.chat("c")
    assert sent_handles(system) == [None, None]


async def test_rep_02_of_two_turns_at_once_one_carries_the_handle(system: System) -> None:
    await system.client.chat("c")
    replies = await asyncio.gather(system.client.chat("c"), system.client.chat("c"))
    assert [reply.status for reply in replies] == [200, 200]
    assert sorted(map(str, sent_handles(system)[1:])) == ["None", "e1"]


async def test_rep_02_an_engine_that_answers_with_a_new_id_loses_its_old_handles(system: System) -> None:
    await system.client.chat("old")
    system.decode[0].script = decode_script(handle("e2"))
    await system.client.chat("new")
    await system.client.chat("old")
    await system.client.chat("new")
    assert sent_handles(system) == [None, None, None, "e2"]


async def test_rep_03_a_handle_is_offered_only_for_its_lifetime(start: Start) -> None:
    system = await start(handle_ttl=2.0)
    await system.client.chat("c")
    await system.client.chat("c")
    await asyncio.sleep(2.1)
    await system.client.chat("c")
    assert sent_handles(system) == [None, "e1", None]


async def test_rep_03_the_engines_own_clock_is_passed_on_and_not_read(system: System) -> None:
    await system.client.chat("c")
    await system.client.chat("c")
    assert system.prefill[0].bodies[1]["kv_transfer_params"]["remote_blocks_expiry_time"] == 812.4


async def test_rep_04_two_callers_with_one_id_do_not_meet(system: System) -> None:
    for key in ("a", "b", "a"):
        await system.client.post(
            "/v1/chat/completions", CHAT | {"conversation_id": "chat-1"}, authorization=f"Bearer {key}"
        )
    assert sent_handles(system) == [None, None, "e1"]


EMPTY_CHOICES = b'data: {"id":"c","choices":[]}\n\n'


@pytest.mark.parametrize(
    ("events", "stored", "fate"),
    [
        ([TEXT, with_field(FINISH, handle()), DONE], True, "stored"),
        ([TEXT, FINISH, with_field(EMPTY_CHOICES, handle()), DONE], True, "stored"),
        ([with_field(TEXT, handle()), FINISH, DONE], True, "stored"),
        ([TEXT, FINISH, DONE], False, "absent"),
        ([TEXT, with_field(FINISH, {}), DONE], False, "invalid"),
        ([TEXT, with_field(FINISH, handle() | {"remote_request_id": None}), DONE], False, "invalid"),
        ([TEXT, with_field(FINISH, handle(future="x")), DONE], True, "stored"),
        ([TEXT, with_field(FINISH.replace(b'"stop"', b'"error"'), handle()), DONE], False, "stored"),
    ],
)
async def test_rep_09_where_the_handle_may_stand(system: System, events: list[bytes], stored: bool, fate: str) -> None:
    await system.client.chat("c")
    before = await system.client.metric("kvr_handles_total", fate=fate)
    system.decode[0].script = decode_script(events=events)
    reply = await system.client.chat("c")
    assert b"kv_transfer_params" not in reply.body and reply.body.endswith(DONE)
    await system.client.chat("c")
    carried = system.prefill[0].bodies[2]["kv_transfer_params"]
    assert (carried["remote_engine_id"] == "e1") == stored
    assert carried.get("future") == ("x" if b"future" in b"".join(events) else None)
    if fate != "stored":
        assert await system.client.metric("kvr_handles_total", fate=fate) > before


@pytest.mark.parametrize(
    "end", [b'data: {"error":{"message":"x","code":500}}\n\n', FINISH.replace(b'"stop"', b'"abort"')]
)
async def test_rep_09_a_bad_end_spoils_a_handle_on_another_event(system: System, end: bytes) -> None:
    carrier = with_field(b'data: {"id":"c","choices":[]}\n\n', handle())
    system.decode[0].script = decode_script(events=[TEXT, end, carrier, DONE])
    assert (await system.client.chat("c")).body == TEXT + end + DONE
    assert await system.client.metric("kvr_handles_total", fate="stored") == 0


async def test_rep_09_the_word_error_in_a_text_spoils_nothing(system: System) -> None:
    event = TEXT.replace(b'"hi"', b'"error"')
    system.decode[0].script = decode_script(events=[event, with_field(FINISH, handle()), DONE])
    assert (await system.client.chat("c")).body == event + FINISH + DONE
    assert await system.client.metric("kvr_handles_total", fate="stored") == 1


async def test_a_handle_of_an_engine_that_is_down_has_one_fate(system: System) -> None:
    await system.client.chat("c")
    system.router.nodes.decode[0].engine_id = None  # as after a restart that only /health told of
    await system.decode[0].stop()
    await system.client.chat("c")
    async with asyncio.timeout(20):
        while (await system.client.get("/ready")).status == 200:
            await asyncio.sleep(0.02)
    await system.client.chat("c")
    fates = {fate: await system.client.metric("kvr_handles_total", fate=fate) for fate in ("taken", "engine_gone")}
    assert sum(fates.values()) == await system.client.metric("kvr_handles_total", fate="stored") == 1


async def test_the_first_token_is_not_a_comment(system: System) -> None:
    async def waits(_: Request, wire: Wire) -> None:
        await wire.start_stream()
        await wire.part(b": keep-alive\n\n")
        await asyncio.sleep(0.3)
        await wire.part(TEXT + DONE)
        await wire.end_stream()

    system.decode[0].script = waits
    assert (await system.client.chat()).body == b": keep-alive\n\n" + TEXT + DONE
    assert await system.client.metric("kvr_ttft_seconds_sum", reuse="cold") >= 0.3
    assert await system.client.metric("kvr_ttft_seconds_count") == 1


async def test_an_event_too_long_to_clean_ends_the_stream(system: System) -> None:
    long = with_field(TEXT.replace(b"hi", b"x" * (2 << 20)), handle())
    halves = [TEXT, long[: 1 << 20], long[1 << 20 :], DONE]
    system.decode[0].script = decode_script(events=halves)
    reply = await system.client.chat("c")
    assert reply.is_whole and DONE not in reply.body and b"10.0.9.2" not in reply.body
    assert b'"error"' in reply.body
    assert await system.client.metric("kvr_handles_total", fate="stored") == 0


async def test_rep_09_a_turn_without_a_handle_leaves_none_of_a_turn_beside_it(system: System) -> None:
    go_on = asyncio.Event()

    async def waits(_: Request, wire: Wire) -> None:
        await wire.start_stream()
        await go_on.wait()
        await wire.part(TEXT + FINISH + DONE)
        await wire.end_stream()

    system.decode[0].script = waits
    beside = asyncio.ensure_future(system.client.chat("c"))
    while not system.decode[0].requests:
        await asyncio.sleep(0.01)
    system.decode[0].script = decode_script()
    await system.client.chat("c")
    go_on.set()
    await beside
    await system.client.chat("c")
    assert sent_handles(system) == [None, None, None]


async def test_rep_09_an_aborted_turn_leaves_no_handle(system: System) -> None:
    async def dies(_: Request, wire: Wire) -> None:
        await wire.start_stream()
        await wire.part(with_field(TEXT, handle()))
        wire.cut()

    await system.client.chat("c")
    system.decode[0].script = dies
    await system.client.chat("c")
    system.decode[0].script = decode_script()
    await system.client.chat("c")
    assert sent_handles(system) == [None, "e1", None]


async def test_non_streamed_answers_are_the_engines_json_without_the_field(system: System) -> None:
    async def script(_: Request, wire: Wire) -> None:
        await wire.json(
            200,
            b'{"id":"c","choices":[{"finish_reason":"stop","x":1.0e2}],"kv_transfer_params":'
            + json.dumps(handle()).encode()
            + b',"z":"\\u00e9"}',
        )

    system.decode[0].script = script
    for _ in range(2):
        reply = await system.client.chat("c", stream=False)
        assert reply.body == b'{"id":"c","choices":[{"finish_reason":"stop","x":1.0e2}],"z":"\\u00e9"}'
    assert sent_handles(system) == [None, "e1"]


async def test_rep_24_events_are_forwarded_as_they_come(system: System) -> None:
    """A router that waits for more before it forwards an event never ends this test."""
    read = asyncio.Queue[bytes]()
    events = [TEXT, TEXT.replace(b"hi", b"there"), with_field(FINISH, handle()), DONE]

    async def waits(_: Request, wire: Wire) -> None:
        await wire.start_stream()
        for event in events:
            await wire.part(event)
            await read.get()
        await wire.end_stream()

    system.decode[0].script = waits
    reader, writer = await system.client.open("/v1/chat/completions", CHAT)
    async with asyncio.timeout(20):
        for event in (events[0], events[1], FINISH, DONE):
            await reader.readuntil(event)
            read.put_nowait(event)
    writer.close()


@pytest.mark.parametrize(
    "form",
    [
        lambda event: event,
        lambda event: event.replace(b"\n", b"\r\n"),
        lambda event: b": ping\n\n" + event,
        lambda event: event.replace(b"data: ", b"data:"),
    ],
)
async def test_rep_24_pieces_line_ends_and_comments(system: System, form: Any) -> None:
    stream = b"".join(map(form, [TEXT, with_field(FINISH, handle()), DONE])).removesuffix(b"\n").removesuffix(b"\r")

    async def pieces(_: Request, wire: Wire) -> None:
        await wire.start_stream()
        for start in range(0, len(stream), 7):
            await wire.part(stream[start : start + 7])
        await wire.end_stream()

    await system.client.chat("c")
    system.decode[0].script = pieces
    reply = await system.client.chat("c")
    assert reply.body == b"".join(map(form, [TEXT, FINISH, DONE])).removesuffix(b"\n").removesuffix(b"\r")
    assert await system.client.metric("kvr_handles_total", fate="stored") == 2


async def test_rep_36_no_client_sees_where_an_engine_is(system: System) -> None:
    system.decode[0].script = decode_script(handle("eng-secret"))
    seen = [await system.client.chat("c"), await system.client.chat("c", stream=False)]
    address = f"127.0.0.1:{system.decode[0].port}"
    system.decode[0].script = lambda _, wire: answers(wire, 400, {"error": {"message": f"at {address}"}})
    seen.append(await system.client.chat("c"))
    system.decode[0].script = lambda _, wire: answers(wire, 400, {"error": {"message": "block of rp refused by p1"}})
    seen.append(await system.client.chat("c"))
    assert b"p1" not in seen[-1].body and seen[-1].json["error"]["message"]
    await system.decode[0].stop()
    seen += [await system.client.chat("c"), await system.client.get("/metrics"), await system.client.get("/ready")]
    for reply in seen:
        for secret in (b"10.0.9.2", b"eng-secret", address.encode(), b"kv_transfer_params"):
            assert secret not in reply.body


async def test_rep_36_headers(system: System) -> None:
    headers = {
        "authorization": "Bearer client-1",
        "x_data_parallel_rank": "3",
        "x_request_id": "abc",
        "traceparent": "00-1-2-01",
    }
    replies = [await system.client.post("/v1/chat/completions", CHAT, **headers) for _ in range(2)]
    ids = [reply.headers["x-request-id"] for reply in replies]
    assert len(set(ids)) == 2 and all(given.startswith("abc-") for given in ids)
    for engine in (system.prefill[0], system.decode[0]):
        assert [request.headers["x-request-id"] for request in engine.requests] == ids
        for request in engine.requests:
            assert (
                request.headers["authorization"] == "Bearer client-1" and request.headers["traceparent"] == "00-1-2-01"
            )
            assert "x-data-parallel-rank" not in request.headers


async def test_bodies_beyond_the_limit_and_compressed_ones(start: Start) -> None:
    system = await start(max_body_bytes=2000)
    assert (await system.client.chat("c", padding="x" * 3000)).status == 413
    assert (await system.client.post("/v1/chat/completions", CHAT, content_encoding="gzip")).status == 415
    assert not system.prefill[0].requests


async def test_a_conversation_stays_on_its_decode_engine(start: Start) -> None:
    system = await start(decode=3)
    for _ in range(3):
        for name in "abc":
            await system.client.chat(name)
    assert sorted(len(engine.requests) for engine in system.decode) in ([0, 0, 9], [0, 3, 6], [3, 3, 3])
    assert set(sent_handles(system)[3:]) == {"e1"}


async def test_a_pooled_connection_that_died_is_replaced_without_the_client_noticing(system: System) -> None:
    await system.client.chat("c")
    for engine in (system.prefill[0], system.decode[0]):
        for writer in tuple(engine._open):
            writer.transport.abort()
    assert (await system.client.chat("c")).body == TEXT + FINISH + DONE
    assert await system.client.metric("kvr_retries_total") == 0


async def test_models_come_from_a_decode_engine(system: System) -> None:
    system.decode[0].script = lambda _, wire: answers(wire, 200, {"object": "list", "data": [{"id": "m"}]})
    assert (await system.client.get("/v1/models")).json["data"] == [{"id": "m"}]


async def test_a_get_on_a_turn_path_is_not_a_turn(system: System) -> None:
    reader, writer = await system.client.open("/v1/chat/completions", b"")
    assert (await read_reply(reader)).status in (404, 405)
    writer.close()
