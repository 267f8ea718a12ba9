"""`python -m router` as a process: its start, its refusals, its drain."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from router.config import parse
from router.discovery import Ec2, EnginesFile, Static
from router.live import Live
from runtime.parameters import BY_NAME, TUNABLES_FILE_ENV
from tests.aws import free_port
from tests.fakes.engine import DONE, FINISH, TEXT, FakeEngine, Request, Wire, prefill_script
from tests.unit.router.conftest import Client, Reply, read_reply

CHAT = {"model": "m", "messages": [], "stream": True}
Command = list[str]


def command(prefill: str, decode: str, port: int, *more: str) -> Command:
    return [sys.executable, "-m", "router", "--prefill", prefill, "--decode", decode, "--port", str(port), *more]


def run(*more: str) -> tuple[int, str]:
    done = subprocess.run(
        command("http://127.0.0.1:9", "http://127.0.0.1:9", 0, *more), capture_output=True, text=True, timeout=20
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--handle-ttl", "480"], "set handle_ttl below 480"),
        (["--handle-ttl", "abc"], "handle_ttl is 'abc'"),
        (["--max-attempts", "9"], "set 1 to 5"),
        (["--log-level", "loud"], "debug or info"),
        (["--decode", "not-a-url"], "http://HOST:PORT"),
        (["--port", "70000"], "set 0 to 65535"),
        (["--handle-tll", "3"], "unrecognized arguments: --handle-tll"),
    ],
)  # fmt: skip
def test_a_bad_option_is_one_line_with_the_fix(more: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(command("http://127.0.0.1:9", "http://127.0.0.1:9", 0, *more)[3:], {})
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and says in said and said.count("\n") == 1


URLS = ["--prefill", "http://h:1", "--decode", "http://h:2"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "no engines given. hint: one of --prefill URL --decode URL, or --engines-file PATH"),
        ([*URLS, "--engines-file", "f"], "--prefill and --decode and --engines-file"),
        (["--decode", "http://h:2", "--engines-ec2", "d"], "--prefill and --decode and --engines-ec2"),
        (["--engines-file", "f", "--engines-ec2", "d"], "--engines-file and --engines-ec2"),
        (["--prefill", "http://h:1"], "no decode engine given. hint: --decode URL"),
        (["--decode", "http://h:1"], "no prefill engine given"),
        ([*URLS, "--prefill", "http://h:1"], "listed twice"),
        (["--prefill", "http://h:0", "--decode", "http://h:2"], "http://h:0"),
        ([*URLS, "--region", "us-east-2"], "--region us-east-2 is for --engines-ec2"),
        (["--engines-ec2", "*"], "'*' is not a deployment"),
        (["--engines-ec2", "d", "--region", "not a region"], "--region"),
        ([*URLS, "--keep-alive", "0"], "set 1 or more"),
        ([*URLS, "--keep-alive", "1.5"], "set 1 or more"),
    ],
)  # fmt: skip
def test_engines_come_from_exactly_one_place(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(argv, {})
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and says in said and said.count("\n") == 1


def test_each_place_of_engines_is_chosen_by_its_flag() -> None:
    given = (URLS, ["--engines-file", "f"], ["--engines-ec2", "d", "--region", "us-east-2"])
    assert [type(parse(argv, {}).source) for argv in given] == [Static, EnginesFile, Ec2]


def test_without_a_region_ec2_is_refused_with_the_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with pytest.raises(SystemExit):
        parse(["--engines-ec2", "d"], {})
    said = capsys.readouterr().err
    assert "--region REGION" in said and said.count("\n") == 1


def test_it_listens_on_loopback_and_keeps_connections_for_longer_than_a_balancer() -> None:
    settings = parse(URLS, {})
    assert (settings.host, settings.keep_alive, settings.tunables_file) == ("127.0.0.1", 75, None)
    settings = parse([*URLS, "--keep-alive", "1260"], {TUNABLES_FILE_ENV: "/run/t.json"})
    assert settings.keep_alive == 1260 and settings.tunables_file == Path("/run/t.json")


async def test_an_idle_connection_stays_open_for_the_time_given() -> None:
    port = free_port()
    argv = command("http://127.0.0.1:9", "http://127.0.0.1:9", port, "--keep-alive", "2")
    process = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    reader, writer = await Client(port).open("/health", b"")
                    break
                except OSError:
                    await asyncio.sleep(0.05)
            assert (await read_reply(reader)).status == 200
            began = time.monotonic()
            assert await reader.read() == b""
        assert 1.9 <= time.monotonic() - began < 10
        writer.close()
    finally:
        process.kill()
        await process.wait()


def test_a_bad_option_ends_the_process_with_2() -> None:
    code, said = run("--handle-ttl", "480")
    assert code == 2 and said.count("\n") == 1 and "set handle_ttl below 480" in said


def test_a_flag_goes_before_the_environment_and_that_before_the_default() -> None:
    urls = ["--prefill", "http://127.0.0.1:9", "--decode", "http://127.0.0.1:9"]
    environ = {"KVR_HANDLE_TTL": "7", "KVR_MAX_ATTEMPTS": "3"}
    settings = parse([*urls, "--max-attempts", "4"], environ)
    tunables = Live(settings.given, settings.tunables_file)
    assert (tunables.number("handle_ttl"), tunables.integer("max_attempts")) == (7, 4)
    assert tunables.number("prefill_timeout") == BY_NAME["prefill_timeout"].default


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = run("--port", str(port))
    assert code == 1 and f"port {port}" in said and "--port" in said and "Traceback" not in said


class Running:
    """A router process in front of a prefill and a decode whose stream goes on until the test sets `go_on`."""

    def __init__(self, drain_timeout: float) -> None:
        self.prefill, self.decode = FakeEngine(prefill_script), FakeEngine(self._stream)
        self.drain_timeout = drain_timeout
        self.go_on = asyncio.Event()

    async def _stream(self, request: Request, wire: Wire) -> None:
        await wire.start_stream()
        await wire.part(TEXT)
        await self.go_on.wait()
        await wire.part(FINISH + DONE)
        await wire.end_stream()

    async def start(self) -> None:
        await self.prefill.start()
        await self.decode.start()
        port = free_port()
        argv = command(self.prefill.url, self.decode.url, port, "--drain-timeout", str(self.drain_timeout))
        self.process = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.DEVNULL)
        self.client = Client(port)
        deadline = time.monotonic() + 60
        while not await self.client.is_ready():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        await self.prefill.stop()
        await self.decode.stop()


@pytest.fixture
async def running(request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    system = Running(getattr(request, "param", 30.0))
    await system.start()
    yield system
    await system.stop()


async def streaming(running: Running) -> asyncio.Task[Reply]:
    """An open stream of which the first event has come."""
    reader, writer = await running.client.open("/v1/chat/completions", CHAT)
    while not running.decode.requests:
        await asyncio.sleep(0.01)

    async def rest() -> Reply:
        try:
            return await read_reply(reader)
        finally:
            writer.close()

    return asyncio.ensure_future(rest())


async def test_sigterm_refuses_new_turns_and_lets_streams_finish(running: Running) -> None:
    stream = await streaming(running)
    running.process.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.3)
    refused = await running.client.chat()
    assert refused.status == 503 and refused.headers["retry-after"]
    assert (await running.client.get("/ready")).status == 503 and (await running.client.get("/health")).status == 200
    running.go_on.set()
    assert (await stream).body == TEXT + FINISH + DONE
    async with asyncio.timeout(60):
        assert await running.process.wait() == 0


@pytest.mark.parametrize("running", [0.5], indirect=True)
async def test_a_stream_that_outlasts_the_drain_ends_with_an_error_event(running: Running) -> None:
    stream = await streaming(running)
    running.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        reply = await stream
        await running.process.wait()
    assert reply.is_whole and reply.body.startswith(TEXT) and b'"error"' in reply.body and DONE not in reply.body
    assert running.process.returncode == 0


@pytest.mark.parametrize("running", [0.3], indirect=True)
async def test_a_turn_that_waits_for_prefill_when_the_drain_ends_gets_a_503(running: Running) -> None:
    async def hangs(request: Request, _: Wire) -> None:
        await request.closed.wait()

    running.prefill.script = hangs
    waiting = asyncio.ensure_future(running.client.chat())
    while not running.prefill.requests:
        await asyncio.sleep(0.01)
    running.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        reply = await waiting
        assert await running.process.wait() == 0
    assert reply.status == 503 and reply.headers["retry-after"]
    assert running.prefill.requests[0].closed.is_set()
