import json
from pathlib import Path

from runtime.logs import configuration, trim
from tests.aws import node


def test_the_agent_ships_the_service_its_own_and_the_boot_log() -> None:
    for role, names in (("decode", ["engine", "agent", "boot"]), ("router", ["router", "agent", "boot"])):
        shown = json.dumps(configuration(node("", "", role=role)))
        assert [
            name for name in ("engine", "router", "agent", "boot") if f"/var/log/kv-roundtrip/{name}.log" in shown
        ] == sorted(names, key=("engine", "router", "agent", "boot").index)


def test_a_long_log_is_emptied_under_its_writer_and_kept_once(tmp_path: Path) -> None:
    log, old = tmp_path / "engine.log", tmp_path / "engine.log.1"
    (tmp_path / "agent.log").write_text("short")
    # As systemd opens it.
    with log.open("ab", buffering=0) as writer:
        for letter in ("a", "b"):
            writer.write(letter.encode() * 200)
            trim(tmp_path, 100)
            assert log.read_bytes() == b"" and old.read_text() == letter * 200
        writer.write(b"c")
    assert log.read_text() == "c" and (tmp_path / "agent.log").read_text() == "short"


def test_a_link_that_the_service_left_leads_root_nowhere(tmp_path: Path) -> None:
    folder, victim = tmp_path / "logs", tmp_path / "shadow"
    folder.mkdir()
    victim.write_text("x" * 200)
    (folder / "engine.log").write_text("y" * 200)
    (folder / "engine.log.1").symlink_to(victim)
    (folder / "router.log").symlink_to(victim)
    trim(folder, 100)
    assert victim.read_text() == "x" * 200 and not (folder / "engine.log.1").is_symlink()


def test_no_logs_yet(tmp_path: Path) -> None:
    trim(tmp_path / "none", 100)
