"""Pinning against the emulator: what the pipelines published becomes cdk.json's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import pin_images
from scripts.pin_images import Exit, main
from tests.emulator.process import Running, running

_CONFIG = {
    "app": ".venv/bin/python app.py",
    "context": {
        "profile": "p5en",
        "profiles": {
            "p5en": {"region": "us-east-2", "images": {"engine_base": "ami-11111111"}},
            "cpu": {"name": "tryout"},
        },
    },
}


@pytest.fixture(scope="module")
def aws() -> Iterator[Running]:
    with running() as emulator:
        yield emulator


@pytest.fixture
def config(aws: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AWS_ENDPOINT_URL", aws.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    path = tmp_path / "cdk.json"
    path.write_text(json.dumps(_CONFIG, indent=2))
    return path


def _publish(aws: Running, source: str, kinds: tuple[str, ...] = ("engine", "router")) -> dict[str, str]:
    """As Image Builder does: an image with our tags, its id in Parameter Store."""
    ec2, ssm = aws.client("ec2"), aws.client("ssm")
    machine = ec2.run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    made = {}
    for kind in kinds:
        made[kind] = ec2.create_image(InstanceId=machine, Name=kind)["ImageId"]
        ec2.create_tags(Resources=[made[kind]], Tags=[{"Key": "kv-roundtrip:source", "Value": source}])
        name = f"/kv-roundtrip-images/{kind}"
        ssm.put_parameter(Name=name, Value=made[kind], Type="String", Overwrite=True)
    return made


def _pinned(path: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads(path.read_text())["context"]["profiles"]["p5en"]["images"]
    return found


def test_nothing_published(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--profile", "p5en", "--config", str(config), "--yes"]) == Exit.FAILED
    assert "/kv-roundtrip-images/engine is not there" in capsys.readouterr().err


def test_new_images_are_shown_and_written(aws: Running, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = _publish(aws, "0123456789")
    assert main(["--profile", "p5en", "--config", str(config), "--yes"]) == Exit.DONE
    assert f"none -> {made['engine']}" in capsys.readouterr().out
    assert _pinned(config) == {"engine_base": "ami-11111111", **made}
    changed = json.loads(config.read_text())
    changed["context"]["profiles"]["p5en"]["images"] = {"engine_base": "ami-11111111"}
    assert changed == _CONFIG
    assert main(["--profile", "p5en", "--config", str(config)]) == Exit.DONE
    assert "pinned already" in capsys.readouterr().out


def test_images_of_two_sources_are_refused(aws: Running, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _publish(aws, "0123456789")
    _publish(aws, "fedcba9876", ("router",))
    assert main(["--profile", "p5en", "--config", str(config), "--yes"]) == Exit.FAILED
    assert "engine 01234567, router fedcba98" in capsys.readouterr().err
    assert config.read_text() == json.dumps(_CONFIG, indent=2)


def test_nobody_to_ask(
    aws: Running, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _publish(aws, "0123456789")
    with Path("/dev/null").open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert main(["--profile", "p5en", "--config", str(config)]) == Exit.USAGE
    assert "hint: --yes" in capsys.readouterr().err
    assert "engine" not in _pinned(config)


def test_an_unknown_profile_names_the_known(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--profile", "p5", "--config", str(config)]) == Exit.FAILED
    assert "hint: one of p5en, cpu" in capsys.readouterr().err


def test_the_file_of_this_project_stays_as_it_is_written() -> None:
    """Else each pin would come with a reformatted file."""
    text = pin_images._CONFIG.read_text()
    config = json.loads(text)
    images = config["context"]["profiles"]["cpu"].get("images", {})
    pins = [pin_images.Pin(kind, "", images[kind], "", "") for kind in images if kind in ("engine", "router")]
    fresh = json.loads(pin_images.written(text, "cpu", pins))
    fresh["context"]["profiles"]["cpu"] = config["context"]["profiles"]["cpu"]
    assert json.dumps(fresh, indent=2, ensure_ascii=False).strip() == text.strip()
