"""Engines that appear, drain and leave while the router runs, as a file says."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from router.discovery import Engine, EnginesFile, SourceFault, Static, follow
from tests.fakes.engine import DONE, FINISH, TEXT, FakeEngine, Request, Wire, handle, prefill_script
from tests.unit.router.conftest import Stage, System
from tests.unit.router.test_turn import CHAT, sent_handles

Entry = dict[str, Any]


def entry(engine: FakeEngine, build: str = "b1", **more: Any) -> Entry:
    return {"url": engine.url, "build": build, **more}


class Listed:
    """A router whose engines stand in a file."""

    def __init__(self, stage: Stage, path: Path) -> None:
        self.stage = stage
        self.path = path
        self.system: System

    async def start(self, prefill: list[Entry], decode: list[Entry], fakes: list[list[FakeEngine]]) -> System:
        self.write(prefill, decode)
        self.system = await self.stage.router(EnginesFile(self.path, interval=0.05), *fakes)
        await self.seen()
        return self.system

    def write(self, prefill: list[Entry], decode: list[Entry]) -> None:
        self.expected = {(item["url"], item["build"], item.get("draining", False)) for item in (*prefill, *decode)}
        self.put(json.dumps({"prefill": prefill, "decode": decode}).encode())

    def put(self, raw: bytes) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_bytes(raw)
        fresh.replace(self.path)

    async def seen(self) -> None:
        """Until the table is what was written last, with every engine up."""
        nodes = self.system.router.nodes
        await self.system.until(
            lambda: (
                {(node.url, node.build, node.draining) for node in nodes.all} == self.expected
                and all(node.healthy for node in nodes.all)
            )
        )


@pytest.fixture
def listed(stage: Stage, tmp_path: Path) -> Listed:
    return Listed(stage, tmp_path / "engines.json")


async def pair(listed: Listed) -> System:
    """One prefill and one decode engine, in the file."""
    prefill, decode = await listed.stage.prefill(), await listed.stage.decode()
    return await listed.start([entry(prefill)], [entry(decode)], [[prefill], [decode]])


async def test_an_engine_added_to_the_file_serves_without_a_restart(listed: Listed) -> None:
    system = await pair(listed)
    second = await listed.stage.decode(handle("e2"))
    listed.write([entry(system.prefill[0])], [entry(system.decode[0]), entry(second)])
    await listed.seen()
    system.router.nodes.decode[0].open_requests = 1
    assert (await system.client.chat("c")).body == TEXT + FINISH + DONE
    assert len(second.requests) == 1
    await system.client.chat("c")
    assert sent_handles(system) == [None, "e2"]


async def test_names_follow_the_order_of_appearance_and_come_once(listed: Listed) -> None:
    system = await pair(listed)
    second = await listed.stage.decode()
    nodes = system.router.nodes
    assert [node.name for node in nodes.all] == ["prefill-0", "decode-0"]
    listed.write([entry(system.prefill[0])], [entry(second)])
    await system.until(lambda: [node.name for node in nodes.decode] == ["decode-1"])
    listed.write([entry(system.prefill[0])], [entry(system.decode[0]), entry(second)])
    await system.until(lambda: sorted(node.name for node in nodes.decode) == ["decode-1", "decode-2"])


async def test_an_engine_that_left_gets_nothing_more_and_its_handles_are_not_offered(listed: Listed) -> None:
    system = await pair(listed)
    second = await listed.stage.decode(handle("e2"))
    await system.client.chat("c")
    first = system.decode[0]
    listed.write([entry(system.prefill[0])], [entry(second)])
    await listed.seen()
    asked = len(first.requests)
    for _ in range(2):
        assert (await system.client.chat("c")).status == 200
    assert len(first.requests) == asked and sent_handles(system) == [None, None, "e2"]
    assert await system.client.metric("kvr_handles_total", fate="engine_gone") == 1
    assert first.url.removeprefix("http://").encode() not in system.router.nodes.secrets
    await system.until(lambda: not first._open)
    checks = first.checks
    await asyncio.sleep(0.3)  # three health intervals
    assert first.checks == checks


async def test_a_stream_of_an_engine_that_left_goes_on_and_leaves_no_handle(listed: Listed) -> None:
    system = await pair(listed)
    second = await listed.stage.decode(handle("e2"))
    go_on = asyncio.Event()
    good = system.decode[0].script

    async def waits(request: Request, wire: Wire) -> None:
        await go_on.wait()
        await good(request, wire)

    system.decode[0].script = waits
    stream = asyncio.ensure_future(system.client.chat("c"))
    await system.until(lambda: bool(system.decode[0].requests))
    left = system.router.nodes.decode[0]
    listed.write([entry(system.prefill[0])], [entry(second)])
    await listed.seen()
    assert left.open_requests == 1 and left.client.names[0] in system.router.nodes.secrets
    go_on.set()
    assert (await stream).body == TEXT + FINISH + DONE
    assert len(system.router.store) == 0 and not system.router.nodes._leaving
    await system.client.chat("c")
    assert sent_handles(system) == [None, None]


async def test_handles_of_an_engine_that_left_unwell_go_before_its_open_requests(listed: Listed) -> None:
    system = await pair(listed)
    await system.client.chat("c")
    second, first = await listed.stage.decode(), system.decode[0]

    async def waits(request: Request, _: Wire) -> None:
        await request.closed.wait()

    first.script = waits
    _, writer = await system.client.open("/v1/chat/completions", CHAT)
    await system.until(lambda: len(first.requests) == 2)
    first.health = 500
    await system.until(lambda: not system.router.nodes.decode[0].healthy)
    assert len(system.router.store) == 1
    listed.write([entry(system.prefill[0])], [entry(second)])
    await listed.seen()
    assert len(system.router.store) == 0 and not first.requests[1].closed.is_set()
    writer.close()


async def test_no_connection_is_kept_to_an_engine_that_left_during_a_request(listed: Listed) -> None:
    system = await pair(listed)
    second, go_on = await listed.stage.decode(), asyncio.Event()

    async def waits(_: Request, wire: Wire) -> None:
        await go_on.wait()
        await wire.json(200, {"data": []})

    first = system.decode[0]
    first.script = waits
    models = asyncio.ensure_future(system.client.get("/v1/models"))
    await system.until(lambda: bool(first.requests))
    listed.write([entry(system.prefill[0])], [entry(second)])
    await listed.seen()
    go_on.set()
    assert (await models).status == 200
    await system.until(lambda: not first._open)


async def test_decode_that_leaves_while_prefill_works_is_replaced(listed: Listed) -> None:
    system = await pair(listed)
    second = await listed.stage.decode()
    go_on = asyncio.Event()

    async def waits(request: Request, wire: Wire) -> None:
        await go_on.wait()
        await prefill_script(request, wire)

    system.prefill[0].script = waits
    turn = asyncio.ensure_future(system.client.chat("c"))
    await system.until(lambda: bool(system.prefill[0].requests))
    listed.write([entry(system.prefill[0])], [entry(second)])
    await listed.seen()
    go_on.set()
    assert (await turn).body == TEXT + FINISH + DONE
    assert not system.decode[0].requests and len(second.requests) == len(system.prefill[0].requests) == 1


async def test_a_draining_decode_gets_no_turns_and_its_conversations_move_once(listed: Listed) -> None:
    system = await pair(listed)
    second = await listed.stage.decode(handle("e2"))
    await system.client.chat("c")
    first = system.decode[0]
    listed.write([entry(system.prefill[0])], [entry(first, draining=True), entry(second)])
    await listed.seen()
    for _ in range(3):
        assert (await system.client.chat("c")).status == 200
    assert len(first.requests) == 1 and len(second.requests) == 3
    assert sent_handles(system) == [None, "e1", "e2", "e2"]
    assert (await system.client.get("/ready")).json["engines"]["decode"] == {"up": 1, "draining": 1, "down": 0}
    listed.write([entry(system.prefill[0])], [entry(first), entry(second)])
    await listed.seen()


async def test_when_all_drain_the_router_is_not_ready(listed: Listed) -> None:
    system = await pair(listed)
    listed.write([entry(system.prefill[0], draining=True)], [entry(system.decode[0])])
    await listed.seen()
    assert (await system.client.chat()).status == 503
    assert (await system.client.get("/ready")).json["lacking"] == ["prefill"]


GOOD_URL = '{"url": "http://127.0.0.1:9", "build": "b1"}'


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "truncated"),
        (b'{"prefill": [', "truncated"),
        (b"[]", "array"),
        (b'{"prefill": []}', "decode"),
        (b'{"prefill": [{"url": "ftp://x"}], "decode": []}', "ftp://x"),
        (b'{"prefill": [{"url": "http://h:99999"}], "decode": []}', "99999"),
        (b'{"prefill": [{"build": "b1"}], "decode": []}', "url"),
        (b'{"prefill": [{"url": "http://h:1", "biuld": "b1"}], "decode": []}', "biuld"),
        (f'{{"prefill": [{GOOD_URL}, {GOOD_URL}], "decode": []}}'.encode(), "twice"),
        (b"\xff\xfe", ""),
    ],
)
async def test_a_bad_file_keeps_the_table_and_is_logged_once(
    listed: Listed, caplog: pytest.LogCaptureFixture, raw: bytes, says: str
) -> None:
    system = await pair(listed)
    listed.put(raw)
    await system.until(lambda: bool(faults(caplog)))
    await asyncio.sleep(0.2)  # four more reads
    (fault,) = faults(caplog)
    assert says in fault and "hint" in fault and str(listed.path) in fault
    assert (await system.client.chat()).status == 200 and len(system.router.nodes.all) == 2
    listed.write([], [entry(system.decode[0])])
    await system.until(lambda: not system.router.nodes.prefill)


def faults(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The reasons logged for engines that could not be read."""
    return [
        record.__dict__["fields"]["reason"]
        for record in caplog.records
        if "engines can't be read" in record.getMessage()
    ]


async def test_a_file_that_is_gone_keeps_the_table_and_one_that_comes_late_is_read(
    listed: Listed, caplog: pytest.LogCaptureFixture
) -> None:
    prefill, decode = await listed.stage.prefill(), await listed.stage.decode()
    listed.system = system = await listed.stage.router(EnginesFile(listed.path, 0.05), [prefill], [decode])
    assert (await system.client.get("/ready")).json["lacking"] == ["prefill", "decode"]
    assert (await system.client.chat()).status == 503
    listed.write([entry(prefill)], [entry(decode)])
    await listed.seen()
    listed.path.unlink()
    await asyncio.sleep(0.2)
    assert (await system.client.chat()).status == 200
    assert len(faults(caplog)) == 2 and all("No such file" in fault for fault in faults(caplog))


async def test_each_kind_of_fault_is_logged_once_until_all_is_well(caplog: pytest.LogCaptureFixture) -> None:
    steps: list[Engine | Exception | None] = [
        SourceFault("a", "first"),
        SourceFault("b", "other"),
        SourceFault("a", "again"),
        None,
        RuntimeError("not foreseen"),
        SourceFault("a", "later"),
    ]

    class Scripted:
        interval: float | None = 0.001

        async def read(self) -> tuple[Engine, ...]:
            step = steps.pop(0)
            if not steps:
                self.interval = None
            if isinstance(step, Exception):
                raise step
            return ()

    accepted: list[tuple[Engine, ...]] = []
    await follow(Scripted(), accepted.append)
    assert faults(caplog) == ["first", "other", "not foreseen", "later"] and accepted == [()]


async def test_a_static_list_is_read_once() -> None:
    accepted: list[tuple[Engine, ...]] = []
    await follow(Static(["http://h:1"], ["http://h:2"]), accepted.append)
    assert accepted == [(Engine("prefill", "http://h:1"), Engine("decode", "http://h:2"))]


async def two_builds(listed: Listed) -> System:
    prefill = [await listed.stage.prefill() for _ in range(2)]
    decode = [await listed.stage.decode(handle(f"e{number}")) for number in range(2)]
    return await listed.start(
        [entry(prefill[0], "blue"), entry(prefill[1], "green")],
        [entry(decode[0], "blue"), entry(decode[1], "green")],
        [prefill, decode],
    )


async def test_engines_of_two_builds_are_never_paired(listed: Listed) -> None:
    system = await two_builds(listed)
    conversations = {prompt: f"prompt {prompt}" for prompt in range(12)}

    async def say(number: int) -> None:
        messages = [{"role": "user", "content": conversations[number]}]
        assert (await system.client.chat(f"c{number}", messages=messages)).status == 200

    for _ in range(2):
        await asyncio.gather(*(say(number) for number in conversations))

    def said(engine: FakeEngine) -> list[str]:
        return sorted(body["messages"][0]["content"] for body in engine.bodies)

    assert said(system.prefill[0]) == said(system.decode[0]) != []
    assert said(system.prefill[1]) == said(system.decode[1]) != []
    for number, engine in enumerate(system.prefill):
        carried = {body["kv_transfer_params"]["remote_engine_id"] for body in engine.bodies}
        assert carried == {None, f"e{number}"}


async def test_a_handle_of_another_build_is_not_sent(listed: Listed) -> None:
    system = await two_builds(listed)
    system.router.nodes.decode[1].open_requests = 9
    await system.client.chat("c")
    blue = [entry(system.prefill[0], "blue", draining=True)], [entry(system.decode[0], "blue", draining=True)]
    listed.write([*blue[0], entry(system.prefill[1], "green")], [*blue[1], entry(system.decode[1], "green")])
    await listed.seen()
    for _ in range(2):
        assert (await system.client.chat("c")).status == 200
    assert [body["kv_transfer_params"]["remote_engine_id"] for body in system.prefill[1].bodies] == [None, "e1"]
    assert await system.client.metric("kvr_handles_total", fate="other_build") == 1


async def test_without_a_pair_of_one_build_a_turn_gets_503_and_ready_says_what_lacks(listed: Listed) -> None:
    prefill, decode = await listed.stage.prefill(), await listed.stage.decode()
    system = await listed.start([entry(prefill, "blue")], [entry(decode, "green")], [[prefill], [decode]])
    reply = await system.client.post("/v1/chat/completions", CHAT)
    assert reply.status == 503 and "of one build" in reply.json["error"]["message"] and b"127.0.0.1" not in reply.body
    assert not prefill.requests and not decode.requests
    ready = await system.client.get("/ready")
    assert ready.status == 503 and ready.json["lacking"] == ["decode of build blue", "prefill of build green"]


async def test_a_handle_outlives_a_time_without_engines(listed: Listed) -> None:
    system = await pair(listed)
    await system.client.chat("c")
    listed.write([entry(system.prefill[0], draining=True)], [entry(system.decode[0])])
    await listed.seen()
    assert (await system.client.chat("c")).status == 503
    listed.write([entry(system.prefill[0])], [entry(system.decode[0])])
    await listed.seen()
    await system.client.chat("c")
    assert sent_handles(system) == [None, "e1"]


async def test_stranded_blocks_are_released_by_a_decode_of_the_same_build(listed: Listed) -> None:
    prefill = await listed.stage.prefill()
    decode = [await listed.stage.decode() for _ in range(3)]
    system = await listed.start(
        [entry(prefill, "blue")],
        [entry(decode[0], "blue"), entry(decode[1], "green"), entry(decode[2], "blue")],
        [[prefill], decode],
    )
    system.router.nodes.decode[2].open_requests = 5
    go_on = asyncio.Event()

    async def waits(request: Request, wire: Wire) -> None:
        await go_on.wait()
        prefill.script = prefill_script
        await prefill_script(request, wire)

    prefill.script = waits
    turn = asyncio.ensure_future(system.client.chat("c"))
    await system.until(lambda: bool(prefill.requests))
    await decode[0].stop()
    go_on.set()
    assert (await turn).status == 200
    await system.until(lambda: len(decode[2].requests) == 2)
    assert not decode[1].requests
