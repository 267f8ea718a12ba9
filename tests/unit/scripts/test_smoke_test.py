import json

import pytest

from scripts import smoke_test
from tests.unit.scripts.server import Answers, serving

UP: Answers = {
    "/health": [(200, "{}")],
    "/ready": [(200, "{}")],
    "/v1/models": [(200, json.dumps({"data": [{"id": "some"}]}))],
    "/metrics": [(200, "")],
}


def said(answers: Answers, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with serving(answers) as url:
        code = smoke_test.main(["--url", url, *arguments])
    return code, capsys.readouterr().out


def test_a_dead_router(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said({"/health": [(500, "")]}, capsys)
    assert code == 1 and text.startswith("FAIL  health") and "500" in text and "fix:" in text


def test_what_is_lacking_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said({**UP, "/ready": [(503, '{"lacking": ["prefill"]}')]}, capsys)
    assert code == 1 and "pass  health" in text and "FAIL  ready" in text and "prefill" in text


@pytest.mark.parametrize("body", ['{"data": []}', '{"object": "error"}', "<html>", "[]"])
def test_no_model(body: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said({**UP, "/v1/models": [(200, body)]}, capsys)
    assert code == 1 and "FAIL  models" in text and "no model" in text


def test_another_model(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(UP, capsys, "--model", "other")
    assert code == 1 and "FAIL  models" in text and "some" in text


def test_without_metrics_nothing_is_proved(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said({**UP, "/metrics": [(404, "")]}, capsys)
    assert code == 1 and "FAIL  conversation" in text and "/metrics" in text


def test_a_turn_that_fails_is_a_failed_check(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said({**UP, "/v1/chat/completions": [(502, '{"error": {"message": "broken"}}')]}, capsys)
    assert code == 1 and "pass  models" in text and "FAIL  conversation" in text and "broken" in text


def test_an_address_without_a_scheme_is_a_wrong_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        smoke_test.main(["--url", "localhost:8000"])
    assert ended.value.code == 2 and "http://127.0.0.1:8000" in capsys.readouterr().err


def test_the_v1_of_an_openai_address_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"/health": [(503, "")]}) as url:
        assert smoke_test.main(["--url", url + "/v1/"]) == 1
    assert "/health answered 503" in capsys.readouterr().out
