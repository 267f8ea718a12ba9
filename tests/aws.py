"""AWS on loopback: the real moto server as a process, and a real HTTP front before it that closes its gaps and plays faults."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3

from runtime.node import NodeConfig

REGION = "us-east-2"
CREDENTIALS: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": REGION,
    # No look at a metadata service or at files of whoever runs the tests.
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
_OF_A_HOP = ("connection", "transfer-encoding", "server", "date")
_START_S = 60.0
_IMAGE = "ami-12c6146b"
"""One of those that moto knows."""


@dataclass(frozen=True, slots=True)
class Aws:
    url: str
    region: str = REGION

    def client(self, service: str) -> Any:
        return boto3.client(
            service,
            region_name=self.region,
            endpoint_url=self.url,
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def emulator() -> Iterator[Aws]:
    """A moto server of its own; dummy credentials are in the environment meanwhile, for children too."""
    port = free_port()
    before = {name: os.environ.get(name) for name in CREDENTIALS}
    os.environ.update(CREDENTIALS)
    command = [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(port)]
    # warnings are errors in the tests' own process only
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, child)
        yield Aws(f"http://127.0.0.1:{port}")
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(10)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _wait_for(port: int, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"moto_server does not listen on {port}; exit code {child.poll()}") from None
            time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Call:
    action: str
    """The operation's name, like GetParametersByPath; for S3 the method and path, like GET /bucket/key."""
    body: bytes
    at: float

    @property
    def form(self) -> dict[str, str]:
        """The arguments of a service that speaks the query protocol: EC2, Auto Scaling."""
        return dict(urllib.parse.parse_qsl(self.body.decode()))


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    content_type: str = "text/xml"
    headers: Mapping[str, str] = field(default_factory=dict)
    """All of them, in place of the content type."""


Rule = Callable[[Call], Answer | None]
"""What a front answers itself; None for what moto is to answer."""


@dataclass
class Front:
    url: str
    rules: list[Rule] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def of(self, action: str) -> list[Call]:
        return [call for call in self.calls if call.action == action]


@contextmanager
def front(aws: Aws) -> Iterator[Front]:
    """A proxy before moto. Its rules are asked in turn, for each request."""
    host = urllib.parse.urlsplit(aws.url).netloc
    made = Front("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            action = _action(self.headers, self.path, body) or f"{self.command} {self.path.partition('?')[0]}"
            call = Call(action, body, time.monotonic())
            made.calls.append(call)
            given = next((said for rule in made.rules if (said := rule(call)) is not None), None)
            if given is None:
                given = self.forwarded(body)
            self.send_response(given.status)
            usual = {"content-type": given.content_type, "content-length": str(len(given.body))}
            for name, value in (given.headers or usual).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(given.body)

        def forwarded(self, body: bytes) -> Answer:
            behind = http.client.HTTPConnection(host, timeout=30)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            try:
                behind.request(self.command, self.path, body, headers)
                reply = behind.getresponse()
                content = reply.read()
                kept = {"content-length": str(len(content))}
                # moto answers HEAD with two lengths, 0 and the object's; the later line of a name is the better one.
                kept |= {
                    n.lower(): text for n, text in reply.headers.items() if n.lower() not in _OF_A_HOP and text != "0"
                }
                return Answer(reply.status, content, headers=kept)
            finally:
                behind.close()

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _action(headers: Any, path: str, body: bytes) -> str:
    target = headers.get("x-amz-target")
    if target:
        return str(target).rpartition(".")[2]
    if "/operation/" in path:  # RPC v2, as CloudWatch speaks it
        return path.rpartition("/")[2]
    return dict(urllib.parse.parse_qsl(body.decode("latin-1"))).get("Action", "")


def throttle(times: int, action: str) -> Rule:
    """The first calls of an operation are refused, as Parameter Store does above its rate."""
    left = [times]

    def rule(call: Call) -> Answer | None:
        if call.action != action or not left[0]:
            return None
        left[0] -= 1
        body = b'{"__type":"ThrottlingException","message":"Rate exceeded"}'
        return Answer(400, body, "application/x-amz-json-1.1")

    return rule


class LifecycleHooks:
    """Auto Scaling's answers about lifecycle actions, which moto lacks. `pending` are the actions not completed yet."""

    def __init__(self, *pending: tuple[str, str]) -> None:
        self.pending = set(pending)
        """(instance, hook)"""
        self.completed: list[tuple[str, str, str]] = []
        """(instance, hook, result)"""

    def __call__(self, call: Call) -> Answer | None:
        if call.action not in ("CompleteLifecycleAction", "RecordLifecycleActionHeartbeat"):
            return None
        form = call.form
        key = (form["InstanceId"], form["LifecycleHookName"])
        if key not in self.pending:
            return _refused(f"No active Lifecycle Action found with instance ID {form['InstanceId']}")
        if call.action == "CompleteLifecycleAction":
            self.pending.discard(key)
            self.completed.append((*key, form["LifecycleActionResult"]))
        return _done(call.action)


def _done(action: str) -> Answer:
    text = (
        f'<{action}Response xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/"><{action}Result/>'
        f"<ResponseMetadata><RequestId>r-1</RequestId></ResponseMetadata></{action}Response>"
    )
    return Answer(200, text.encode())


def _refused(message: str) -> Answer:
    text = (
        '<ErrorResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/"><Error><Type>Sender</Type>'
        f"<Code>ValidationError</Code><Message>{message}</Message></Error><RequestId>r-1</RequestId></ErrorResponse>"
    )
    return Answer(400, text.encode())


def node(aws_url: str, metadata_url: str, **given: Any) -> NodeConfig:
    """A decode engine's configuration with `given` in it; fields that nobody named are empty."""
    usual: dict[str, Any] = {field.name: 0 if field.type == "int" else "" for field in fields(NodeConfig)}
    usual |= {
        "deployment": "kv-roundtrip", "region": REGION, "role": "decode", "accelerator": "cpu", "parameters": "/kv-roundtrip",
        "group": "kv-decode", "launch_hook": "kv-decode-launch", "terminate_hook": "kv-decode-terminate",
        "load_budget_s": 30, "endpoint_url": aws_url, "metadata_url": metadata_url,
    }  # fmt: skip
    return NodeConfig.parse(usual | given)


def launch(aws: Aws, group: str = "") -> str:
    """An instance, by its id; in an Auto Scaling group of that name when one is given."""
    ec2 = aws.client("ec2")
    if not group:
        return str(ec2.run_instances(ImageId=_IMAGE, MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"])
    scaling = aws.client("autoscaling")
    scaling.create_launch_configuration(LaunchConfigurationName=group, ImageId=_IMAGE, InstanceType="t3.micro")
    scaling.create_auto_scaling_group(
        AutoScalingGroupName=group,
        LaunchConfigurationName=group,
        MinSize=1,
        MaxSize=1,
        AvailabilityZones=[f"{REGION}a"],
    )
    (made,) = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"]
    return str(made["Instances"][0]["InstanceId"])


def tags(aws: Aws, instance: str) -> dict[str, str]:
    found = aws.client("ec2").describe_tags(Filters=[{"Name": "resource-id", "Values": [instance]}])["Tags"]
    return {tag["Key"]: tag["Value"] for tag in found}
