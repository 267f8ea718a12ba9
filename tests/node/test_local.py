import contextlib
import functools
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime.local import parse
from tests.node.children import environment, lines, python, until

WEB = "import http.server as h, sys; h.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), h.SimpleHTTPRequestHandler).serve_forever()"


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text("{}")
    return str(tmp_path)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_options(model: str) -> None:
    port = str(free_port())
    options = parse(["--model", model, "--port", port, "--prefill", "2", "--decode", "3", "--round-trip", "false"])
    assert (options.model, options.port, options.prefill, options.decode) == (model, int(port), 2, 3)
    assert options.values == {"round_trip": False}


def test_a_taken_port_is_one_line_and_nothing_was_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        # A model that is not there: that it is not named shows that the port was looked at first.
        said = refused(["--model", "/nowhere", "--port", str(port)], capsys)
    assert said.count("\n") == 1 and f"port {port} " in said and "/nowhere" not in said


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--model", "/nowhere"], "/nowhere"),
        (["--prefill", "0"], "--prefill is 0"),
        (["--decode", "-1"], "--decode is -1"),
        (["--block-size", "1"], "block_size is 1"),
        (["--round-trip", "maybe"], "round_trip is 'maybe'"),
    ],
)
def test_a_wrong_option_is_named(
    arguments: list[str], named: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert named in refused(["--model", model, "--port", str(free_port()), *arguments], capsys)


def test_a_tunable_from_the_environment(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVR_BLOCK_SIZE", "64")
    assert parse(["--model", model, "--port", "0"]).values == {"block_size": 64}
    assert parse(["--model", model, "--port", "0", "--block-size", "16"]).values == {"block_size": 16}


KEEPER = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from runtime.fleet import FleetError, Server
from runtime.janitor import Janitor
from runtime.local import keep_running
folder, port, code = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
argv = [sys.executable, "-c", code, port]
server = Server("web", int(port), "/", argv, dict(os.environ), folder, Janitor(folder, {}))
server.start()
try:
    keep_running(SimpleNamespace(servers=[server]), 0.05)
except FleetError as error:
    print(error)
"""


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Callable[[int, str], subprocess.Popen[bytes]]]:
    """Keeps a server running whose code is given, in a process of its own; what it says is in tmp_path/said."""
    started: list[subprocess.Popen[bytes]] = []

    def start(port: int, code: str) -> subprocess.Popen[bytes]:
        command = [*python(KEEPER), str(tmp_path), str(port), code]
        with (tmp_path / "said").open("wb") as said:
            started.append(subprocess.Popen(command, stdout=said, env=environment()))
        return started[0]

    yield start
    for process in started:
        process.kill()
        process.wait()


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2):
        return True
    return False


def said_ready(folder: Path, times: int) -> bool:
    return lines(folder / "said").count("web is ready again") == times


def test_what_ends_is_started_again_on_its_port_and_reported(
    keeper: Callable[[int, str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """More often than a start may fail: a server that was ready in between starts from zero."""
    port = free_port()
    parent = keeper(port, WEB)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    for number in range(1, 6):
        until(lambda: answers(port))
        os.kill(int(children.read_text()), signal.SIGKILL)
        until(functools.partial(said_ready, tmp_path, number))
    assert sum("web ended; starting it again" in line for line in lines(tmp_path / "said")) == 5


def test_what_cannot_start_ends_in_an_error_with_its_last_lines(
    keeper: Callable[[int, str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    parent = keeper(free_port(), "import sys; sys.exit('no memory left')")
    assert parent.wait(30) == 0
    said = (tmp_path / "said").read_text()
    assert "web ended 3 times before it was ready. Its last lines:\n" in said and "no memory left" in said
