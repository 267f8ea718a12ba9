import json
from dataclasses import replace
from pathlib import Path

import pytest

from scripts import atlas, demo
from scripts.demo import Point, forget, results, verdict
from tests.unit.scripts.server import serving

GOOD = Point(
    prompt_tokens=600,
    ttft_ms={"off": 4000.0, "on": 500.0, "local": 800.0},
    transfer_ms=12.5,
    prefill_ms=300.0,
    reused_tokens=576,
    identical=True,
    answer="Paris.",
)


def test_verdict() -> None:
    assert verdict([GOOD]) == []
    (wrong,) = verdict([GOOD, replace(GOOD, prompt_tokens=1300, identical=False)])
    assert "1300" in wrong and "differs" in wrong
    (unused,) = verdict([replace(GOOD, reused_tokens=0)])
    assert "600" in unused and "nothing was reused" in unused


def test_results_have_the_published_shape() -> None:
    longest = replace(GOOD, prompt_tokens=2700, ttft_ms={"off": 33000.0, "on": 1000.0, "local": 1200.0})
    found = json.loads(json.dumps(results([GOOD, longest])))
    assert set(found) == {"model", "machine", "commit", "points", "ratio_longest"}
    assert found["ratio_longest"] == 33.0 and "cores" in found["machine"]
    for point in found["points"]:
        assert set(point) >= {"prompt_tokens", "ttft_ms", "transfer_ms", "reused_tokens", "identical", "answer"}
        assert set(point["ttft_ms"]) == {"off", "on", "local"}


def test_forget_waits_until_the_engine_says_that_it_did() -> None:
    refused, done = '{"success": false}', '{"success": true}'
    answers = [(200, refused), (200, refused), (200, done), (500, "")]
    with serving({"/reset_prefix_cache": answers}) as url:
        forget(url, 5)
    assert answers == [(500, "")], "asked three times"


def test_forget_says_when_the_cache_stays_full() -> None:
    refusing = serving({"/reset_prefix_cache": [(200, '{"success": false}')]})
    with refusing as url, pytest.raises(RuntimeError, match="still holds KV blocks"):
        forget(url, 0.3)


def test_a_longer_prompt_is_a_longer_atlas_and_another_seed_shares_no_prefix() -> None:
    short, long = atlas.conversation(600, 1), atlas.conversation(5_300, 1)
    assert [message["role"] for message in short] == ["system", "user"]
    assert 7 < len(long[0]["content"]) / len(short[0]["content"]) < 14
    assert atlas.conversation(600, 1) == short
    other = atlas.conversation(600, 2)
    assert other[0]["content"].split()[:3] == short[0]["content"].split()[:3]
    assert other[0]["content"].split()[3] != short[0]["content"].split()[3]


def test_the_atlas_does_not_give_the_answer_away() -> None:
    countries = [entry[0] for entry in atlas._ENTRIES]
    assert len(set(countries)) == len(countries) and all(len(entry) == 4 for entry in atlas._ENTRIES)
    assert "France" not in countries, "the answer has to come from the model, not from the atlas"


def test_an_unknown_option_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        demo.main(["--out", str(tmp_path), "--short"])
    assert ended.value.code == 2 and "--short" in capsys.readouterr().err
