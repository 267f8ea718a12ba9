import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from runtime.metadata import Metadata, MetadataError
from tests.aws import free_port
from tests.fakes.metadata import serving, usual

ROOT = Path(__file__).parents[2]


def test_values_come_with_a_token_only() -> None:
    with serving(usual("i-1", "10.0.0.1")) as server:
        metadata = Metadata(server.url)
        assert metadata.get("local-ipv4") == "10.0.0.1"
        assert metadata.require("instance-id") == "i-1"
        assert len(server.tokens) == 1
        with pytest.raises(OSError, match="401"):
            urllib.request.urlopen(f"{server.url}/latest/meta-data/local-ipv4")


def test_what_an_instance_lacks_is_none() -> None:
    with serving(usual("i-1", "10.0.0.1")) as server:
        assert Metadata(server.url).get("spot/instance-action") is None
        with pytest.raises(MetadataError, match="has no spot/instance-action"):
            Metadata(server.url).require("spot/instance-action")


def test_an_ended_token_is_renewed() -> None:
    with serving(usual("i-1", "10.0.0.1")) as server:
        metadata = Metadata(server.url)
        metadata.get("instance-id")
        server.tokens.clear()
        assert metadata.get("instance-id") == "i-1"


def test_a_service_that_is_late_is_asked_again() -> None:
    with serving(usual("i-1", "10.0.0.1")) as server:
        server.failures = 3
        assert Metadata(server.url).get("instance-id") == "i-1"


def test_no_service_is_an_error_with_a_hint_and_soon() -> None:
    started = time.monotonic()
    with pytest.raises(MetadataError, match=r"refused.*hint:.*hop limit"):
        Metadata(f"http://127.0.0.1:{free_port()}").get("instance-id")
    assert time.monotonic() - started < 10


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    with serving(usual("i-1", "10.0.0.1")) as server:
        assert Metadata(server.url).get("instance-id") == "i-1"


def test_the_fake_runs_as_a_command_and_takes_values_at_run_time(tmp_path: Path) -> None:
    port, values = free_port(), tmp_path / "values.json"
    values.write_text("{}")
    command = [sys.executable, "-m", "tests.fakes.metadata", "--port", str(port), "--instance-id", "i-7"]
    child = subprocess.Popen([*command, "--local-ipv4", "10.0.0.7", "--values", str(values)], cwd=ROOT)
    try:
        metadata = Metadata(f"http://127.0.0.1:{port}")
        deadline = time.monotonic() + 20
        while True:
            try:
                assert metadata.get("instance-id") == "i-7"
                break
            except MetadataError:
                assert time.monotonic() < deadline
        values.write_text('{"autoscaling/target-lifecycle-state": "Terminated"}')
        assert metadata.get("autoscaling/target-lifecycle-state") == "Terminated"
        fake = f"http://127.0.0.1:{port}/fake/spot/instance-action"
        urllib.request.urlopen(urllib.request.Request(fake, b"{}", method="PUT")).close()
        assert metadata.get("spot/instance-action") == "{}"
        urllib.request.urlopen(urllib.request.Request(fake, method="DELETE")).close()
        assert metadata.get("spot/instance-action") is None
    finally:
        child.terminate()
        child.wait(10)
