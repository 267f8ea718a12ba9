"""runtime/boot/storage.sh with stand-ins for what needs real disks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "runtime" / "boot" / "storage.sh"
DISK = "Amazon EC2 NVMe Instance Storage"


class Disks:
    """What a machine shows, and a log of what was done to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = folder / "state"
        (folder / "bin").mkdir()
        for name in ("mdadm", "mkfs.xfs", "mount", "udevadm"):
            self.command(name, f'echo "{name} $*" >>{folder}/done')
        self.command("id", "exit 1")
        self.shows()

    def command(self, name: str, script: str) -> None:
        file = self.folder / "bin" / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def shows(self, disks: int = 0, used: str = "", labelled: str = "", mounted: str = "") -> None:
        names = "\n".join(f"/dev/nvme{number}n1 {DISK}" for number in range(1, disks + 1))
        self.command(
            "lsblk",
            f'case "$*" in *MODEL*) cat <<END\n/dev/nvme0n1 Amazon Elastic Block Store\n{names}\nEND\n;; *) echo "{used}" ;; esac',
        )
        self.command("blkid", f'[ -n "{labelled}" ] || exit 2; echo "{labelled}"')
        self.command("mountpoint", f'[ "$2" = "{mounted}" ]')

    def run(self) -> list[str]:
        done = subprocess.run(
            ["bash", str(SCRIPT)], capture_output=True, text=True, timeout=30, check=False,
            env={"PATH": f"{self.folder}/bin:/usr/bin:/bin", "KVR_STATE": str(self.place)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        log = self.folder / "done"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return [line for line in lines if not line.startswith(("udevadm", "mdadm --assemble"))]


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    return Disks(tmp_path)


def test_without_an_instance_store_the_root_volume_is_used(disks: Disks) -> None:
    assert disks.run() == [] and disks.place.is_dir()


def test_all_disks_become_one(disks: Disks) -> None:
    disks.shows(2)
    assert disks.run() == [
        "mdadm --create /dev/md/kv-roundtrip --run --level=0 --raid-devices=2 /dev/nvme1n1 /dev/nvme2n1",
        "mkfs.xfs -f -q -L kv-roundtrip /dev/md/kv-roundtrip",
        f"mount -o noatime /dev/md/kv-roundtrip {disks.place}",
    ]
    disks.shows(1)
    assert disks.run()[0] == "mkfs.xfs -f -q -L kv-roundtrip /dev/nvme1n1"


def test_after_a_reboot_the_weights_are_where_they_were(disks: Disks) -> None:
    """The disks hold a file system then, so that none is free; udev may have given the array another name."""
    disks.shows(2, used="linux_raid_member", labelled="/dev/md127")
    assert disks.run() == [f"mount -o noatime /dev/md127 {disks.place}"]


def test_what_is_mounted_stays(disks: Disks) -> None:
    disks.shows(2, labelled="/dev/md127", mounted=str(disks.place))
    assert disks.run() == []


def test_the_array_of_a_deep_learning_image_is_used(disks: Disks) -> None:
    disks.command("install", "exit 0")
    disks.shows(2, used="LVM2_member", mounted="/opt/dlami/nvme")
    assert disks.run() == [f"mount --bind /opt/dlami/nvme/kv-roundtrip {disks.place}"]


def test_xfs_takes_the_label() -> None:
    (line,) = [line for line in SCRIPT.read_text().splitlines() if line.startswith("label=")]
    assert len(line.removeprefix("label=")) <= 12
