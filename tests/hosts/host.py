"""A host: real systemd as its first process, with namespaces of its own, that boots from user data like a cloud's."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.metadata import FakeMetadata
from tests.hosts.namespace import Network, Relay, listen

ROOT = Path(__file__).parents[2]
AWS_PORT = 4566
_BOOT_LIMIT_S = 30.0


@dataclass
class Host:
    """`instance` and `address` are what the emulator gave it; `aws` is where its endpoint is, on this machine's loopback."""

    name: str
    instance: str
    address: str
    network: Network
    aws: tuple[str, int]
    credentials: Mapping[str, str]
    log: Path
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _relay: Relay | None = field(default=None, repr=False)
    metadata: FakeMetadata | None = field(default=None, repr=False)

    def start(self) -> None:
        """Returns when systemd runs."""
        self.network.join(self.name, self.address)
        self._serve()
        self._power_on()

    def reboot(self) -> None:
        """As after a loss of power: what is on its disks stays, and user data does not run again."""
        saved = self.log.with_suffix(".tar")
        with saved.open("wb") as disk:
            # What systemd enabled, node.json, weights and logs.
            kept = [
                "etc/systemd/system",
                "etc/kv-roundtrip",
                "var/lib/kv-roundtrip",
                "var/log/kv-roundtrip",
                "opt/engine.py",
            ]
            subprocess.run(
                self.command("tar", "-C", "/", "-c", "--ignore-failed-read", "--warning=no-file-changed", *kept),
                stdout=disk, stderr=subprocess.DEVNULL, timeout=60, check=False,
            )  # fmt: skip
        self._power_off()
        self._power_on(saved)

    def _serve(self) -> None:
        """What the cloud has for it: AWS, and the metadata of its instance."""
        self._relay = Relay(listen(self.name, "127.0.0.1", AWS_PORT), self.aws)
        self._relay.start()
        self.metadata = FakeMetadata({"instance-id": self.instance, "local-ipv4": self.address})
        self.metadata.socket.close()
        self.metadata.socket = listen(self.name, "169.254.169.254", 80)
        threading.Thread(target=self.metadata.serve_forever, daemon=True).start()

    def _power_on(self, disk: Path | None = None) -> None:
        given = {**self.credentials, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{AWS_PORT}"}
        environment = " ".join(f'"{name}={value}"' for name, value in given.items())
        spaces = ["unshare", "--mount", "--pid", "--fork", "--uts", "--ipc", "--kill-child"]
        boot = [str(ROOT / "tests" / "hosts" / "boot.sh"), self.name, str(ROOT), environment, str(disk or "/dev/null")]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, *spaces, *boot],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._wait_for_systemd()

    def stop(self) -> None:
        """Ends systemd and all that it started."""
        self._power_off()
        if self.metadata is not None:
            self.metadata.shutdown()
            self.metadata.server_close()
        if self._relay is not None:
            self._relay.stop()
        self.network.leave(self.name)

    def _power_off(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
        _remove_cgroup(self.name)

    def command(self, *command: str) -> list[str]:
        """`command` as it is run on this host, by root."""
        return [
            "nsenter",
            "--target",
            str(self._first()),
            "--mount",
            "--pid",
            "--net",
            "--uts",
            "--ipc",
            "--cgroup",
            "--",
            *command,
        ]

    def run(self, *command: str, seconds: float = 30) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*command), capture_output=True, text=True, timeout=seconds, check=False,
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        )  # fmt: skip

    def boot(self, user_data: str) -> subprocess.Popen[str]:
        """What cloud-init does at a first boot: runs the user data, as root, as a service of systemd."""
        written = self.run(
            "bash", "-c", f"cat >/run/user-data <<'KVR_USER_DATA'\n{user_data}\nKVR_USER_DATA\nchmod 700 /run/user-data"
        )
        assert written.returncode == 0, written.stderr
        started = ["systemd-run", "--unit=cloud-final", "--wait", "--pipe", "--quiet", "/run/user-data"]
        return subprocess.Popen(
            self.command(*started),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def journal(self, *units: str) -> str:
        chosen = [part for unit in units for part in ("-u", unit)]
        return self.run("journalctl", "--no-pager", "-o", "cat", *chosen).stdout

    def file(self, path: str) -> str:
        return self.run("cat", path).stdout

    def _first(self) -> int:
        """systemd's process id on this machine."""
        assert self._process is not None
        last = self._process.pid
        # ip becomes unshare, whose child is the first process of the new space.
        children = Path(f"/proc/{last}/task/{last}/children").read_text().split()
        return int(children[0]) if children else last

    def _wait_for_systemd(self) -> None:
        deadline = time.monotonic() + _BOOT_LIMIT_S
        while True:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                state = self.run("systemctl", "is-system-running", seconds=5).stdout.strip()
                if state in ("running", "degraded"):
                    return
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not boot: {self.log.read_text()[-2000:]}")
            time.sleep(0.2)


def _remove_cgroup(name: str) -> None:
    """The kernel keeps a cgroup until it is removed, deepest first."""
    script = f"mount -t cgroup2 none /mnt && find /mnt/{name} -depth -type d -exec rmdir {{}} +; [ ! -d /mnt/{name} ]"
    for _ in range(20):
        done = subprocess.run(
            ["unshare", "--mount", "bash", "-c", script], capture_output=True, timeout=10, check=False
        )
        if done.returncode == 0:
            return
        time.sleep(0.1)


def why_not() -> str:
    """Why hosts can't be made here; empty when they can."""
    if os.geteuid() != 0:
        return "needs root, for namespaces"
    if sys.platform != "linux" or not Path("/lib/systemd/systemd").exists():
        return "needs systemd, of the Debian package of that name"
    tried = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "bash", "-c", "mount -t cgroup2 none /mnt && ip link show lo"],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    return f"namespaces can't be made here: {tried.stderr.strip()}" if tried.returncode else ""
