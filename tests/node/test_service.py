from pathlib import Path

import pytest

from runtime import service
from tests.node.systemctl import says


def test_a_unit_has_the_state_that_systemd_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    says(monkeypatch, tmp_path, "failed")
    assert service.state("kv-roundtrip-engine") == service.FAILED
    # systemd calls a unit inactive of which it has never heard.
    says(monkeypatch, tmp_path, "inactive", load="not-found")
    assert service.state("kv-roundtrip-engine") == ""


def test_where_there_is_no_systemd_nothing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert service.state("kv-roundtrip-engine") == ""
