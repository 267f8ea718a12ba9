"""A machine without a deployment around it: a host, an instance of a group in the emulator, and user data for any node.json.

Engines here are a few lines that answer /health, in place of vLLM, which takes minutes; the units around them are the image's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from runtime.node import NodeConfig
from runtime.parameters import PARAMETERS, Kind
from stacks.userdata import _SCRIPT as USER_DATA
from tests.aws import CREDENTIALS, Aws, Front, LifecycleHooks, emulator, front, launch, node, tags
from tests.hosts.account import Activities, Signals, suspended
from tests.hosts.host import AWS_PORT, Host
from tests.hosts.namespace import Network

GROUP = "kv-decode"
HOOK = "kv-decode-launch"
SERVICES = {"prefill": "engine", "decode": "engine", "router": "router"}

# In place of vLLM: what its process does is in a file that tests change.
ENGINE = """
import http.server, pathlib, sys
if pathlib.Path("/run/engine-fails").exists():
    sys.exit("this engine fails")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"vllm:num_requests_running 0\\n"
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""


@dataclass
class Machine:
    aws: Aws
    front: Front
    hooks: LifecycleHooks
    signals: Signals
    activities: Activities
    host: Host
    instance: str
    config: NodeConfig
    output: str = ""
    """What its user data wrote."""
    took: float = 0.0
    """Seconds until its user data ended."""

    @property
    def service(self) -> str:
        return f"kv-roundtrip-{SERVICES.get(self.config.role, 'engine')}"

    @property
    def state(self) -> str | None:
        return tags(self.aws, self.instance).get("kv-roundtrip:state")

    @property
    def suspended(self) -> list[str]:
        return suspended(self.aws, self.config.group)

    @property
    def results(self) -> list[str]:
        """How the launch hook was completed."""
        return [result for _, _, result in self.hooks.completed]

    def user_data(self, **changes: Any) -> str:
        """`changes` may be what no template writes."""
        entries = {**dataclasses.asdict(self.config), "endpoint_url": f"http://127.0.0.1:{AWS_PORT}"}
        entries |= {"metadata_url": "http://169.254.169.254"} | changes
        return USER_DATA.format(node=json.dumps(entries, indent=1), name="kv-roundtrip", role=entries["role"])

    def boot(self, seconds: float = 120, **changes: Any) -> int:
        """Exit status of the user data, negative when it did not end."""
        begun = time.monotonic()
        process = self.host.boot(self.user_data(**changes))
        try:
            self.output = process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            self.output = process.communicate(timeout=10)[0]
        self.took = time.monotonic() - begun
        return process.returncode

    def active(self, unit: str) -> str:
        return self.host.run("systemctl", "is-active", unit).stdout.strip()

    def pid(self, unit: str) -> int:
        return int(self.host.run("systemctl", "show", "-P", "MainPID", unit).stdout)

    def shell(self, script: str, seconds: float = 30) -> str:
        done = self.host.run("bash", "-c", script, seconds=seconds)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def stand_in(self) -> None:
        """An engine that is no vLLM, on a node that needs no look and no weights."""
        self.shell(
            f"cat >/opt/engine.py <<'END'\n{ENGINE}\nEND\n"
            "drop() { mkdir -p /etc/systemd/system/$1.d\n"
            'printf \'[Service]\\nExecStart=\\nExecStart=%s\\n%s\\n\' "$2" "$3" >/etc/systemd/system/$1.d/stand-in.conf; }\n'
            "drop kv-roundtrip-engine.service '/usr/bin/env python3 /opt/engine.py' RestartSec=1\n"
            "drop kv-roundtrip-preflight.service /bin/true\ndrop kv-roundtrip-weights.service /bin/true\n"
            "systemctl daemon-reload"
        )


def until(true: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "not within its time"
        time.sleep(0.2)


@dataclass
class Yard:
    """Where machines are made. Each has a front of its own, for faults."""

    aws: Aws
    network: Network
    folder: Path
    _made: int = field(default=0, repr=False)

    @contextmanager
    def machine(self, role: str = "decode", **given: Any) -> Iterator[Machine]:
        self._made += 1
        group = f"{GROUP}-{self._made}"
        instance = launch(self.aws, group)
        hooks, signals, activities = LifecycleHooks((instance, HOOK)), Signals(), Activities()
        config = dataclasses.replace(
            node(
                "", "", role=role, engine_port=8000, router_port=8080, stack="kv", group_resource="Group", group=group
            ),
            **{"accelerator": "none" if role == "router" else "cpu", "model": "/opt/model", "weights": "hub", **given},
        )
        with front(self.aws) as before, contextlib.ExitStack() as stack:
            before.rules += [hooks, signals, activities]
            place = urlsplit(before.url)
            assert place.hostname and place.port
            name = f"kvr-{os.getpid()}-bare{self._made}"
            host = Host(
                name, instance, f"10.40.9.{self._made}", self.network, (place.hostname, place.port), CREDENTIALS,
                self.folder / f"{name}.log",
            )  # fmt: skip
            stack.callback(host.stop)
            host.start()
            yield Machine(self.aws, before, hooks, signals, activities, host, instance, config)


@contextmanager
def yard(folder: Path) -> Iterator[Yard]:
    with emulator() as aws:
        ssm = aws.client("ssm")
        for parameter in PARAMETERS:
            default = str(parameter.default)
            text = default.lower() if parameter.kind is Kind.FLAG else default
            text = "0.5" if parameter.name == "agent_interval" else text
            ssm.put_parameter(Name=f"/kv-roundtrip/{parameter.name}", Value=text, Type="String")
        network = Network(f"kvr-{os.getpid()}-yard")
        try:
            network.start()
            yield Yard(aws, network, folder)
        finally:
            network.stop()
