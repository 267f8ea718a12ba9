"""REP-09: a deployment whose engines lack our connector or plugin says so, instead of recomputing in silence."""

from collections.abc import Iterator

import pytest

from runtime.fleet import Fleet, FleetOptions
from runtime.model import tiny
from scripts import smoke_test
from scripts.turns import counter


@pytest.fixture(scope="module")
def stock() -> Iterator[Fleet]:
    options = FleetOptions(
        model=str(tiny()),
        max_model_len=2_048,
        stock_connector=True,
        environment={"VLLM_PLUGINS": "kv_roundtrip_progress"},
    )
    with Fleet(options) as running:
        yield running


def test_rep_09_unpatched_engines_fail_the_smoke_test_with_the_reason(
    stock: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    assert smoke_test.main(["--url", stock.router_url]) == 1
    said = capsys.readouterr().out
    assert "FAIL  conversation" in said and "no token was pulled" in said and "streaming plugin" in said
    assert "absent 3" in said
    assert counter(stock.router_url, "kvr_handles_total", fate="absent") == 3


def test_the_smoke_test_passes_on_ours(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    assert smoke_test.main(["--url", fleet.router_url]) == 0
    said = capsys.readouterr().out
    assert said.count("pass") == len(smoke_test.CHECKS) and "came back from decode" in said


def test_a_wrong_address_is_one_line_with_a_fix(capsys: pytest.CaptureFixture[str]) -> None:
    assert smoke_test.main(["--url", "http://127.0.0.1:9"]) == 1
    assert "fix: start the router" in capsys.readouterr().out
