"""An instance metadata service (IMDSv2) over real HTTP: no answer without a token, 404 for what is not set.

    python -m tests.fakes.metadata --port 1338 --instance-id i-1 --local-ipv4 10.0.0.1 [--values FILE]

Tests change values at run time: `PUT /fake/<path>` with the value, `DELETE /fake/<path>`, or through the JSON object of
path -> value in FILE, which is read at every request.
"""

from __future__ import annotations

import argparse
import json
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_DATA = "/latest/meta-data/"
_FAKE = "/fake/"


class FakeMetadata(ThreadingHTTPServer):
    """`values` by path, like "spot/instance-action"; `tokens` are those handed out, clearing them ends their life."""

    daemon_threads = True

    def __init__(self, values: Mapping[str, str], address: tuple[str, int] = ("127.0.0.1", 0), file: str = "") -> None:
        super().__init__(address, _Handler)
        self.values = dict(values)
        self.tokens: set[str] = set()
        self.failures = 0
        """How many requests are answered 503 from now on."""
        self._file = file

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_port}"

    def look_up(self, path: str) -> str | None:
        given = json.loads(Path(self._file).read_text()) if self._file else {}
        found = given.get(path, self.values.get(path))
        return None if found is None else str(found)


class _Handler(BaseHTTPRequestHandler):
    server: FakeMetadata

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path.startswith(_FAKE):
            self.server.values[self.path.removeprefix(_FAKE)] = body.decode()
            self._answer(200)
        elif self._fails():
            self._answer(503)
        elif self.path != "/latest/api/token" or "x-forwarded-for" in self.headers:
            self._answer(403)
        elif not self.headers.get("x-aws-ec2-metadata-token-ttl-seconds", "").isdecimal():
            self._answer(400)
        else:
            token = secrets.token_urlsafe(16)
            self.server.tokens.add(token)
            self._answer(200, token)

    def do_DELETE(self) -> None:
        self.server.values.pop(self.path.removeprefix(_FAKE), None)
        self._answer(200)

    def do_GET(self) -> None:
        if self._fails():
            self._answer(503)
            return
        if self.headers.get("x-aws-ec2-metadata-token") not in self.server.tokens:
            self._answer(401)
            return
        found = self.server.look_up(self.path.removeprefix(_DATA)) if self.path.startswith(_DATA) else None
        self._answer(404) if found is None else self._answer(200, found)

    def _fails(self) -> bool:
        if not self.server.failures:
            return False
        self.server.failures -= 1
        return True

    def _answer(self, status: int, text: str = "") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def usual(instance_id: str, local_ipv4: str, zone: str = "us-east-2a") -> dict[str, str]:
    """What every instance of an Auto Scaling group has."""
    return {
        "instance-id": instance_id,
        "local-ipv4": local_ipv4,
        "placement/availability-zone": zone,
        "placement/region": zone[:-1],
        "autoscaling/target-lifecycle-state": "InService",
    }


@contextmanager
def serving(values: Mapping[str, str]) -> Iterator[FakeMetadata]:
    server = FakeMetadata(values)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.metadata")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--instance-id", required=True)
    parser.add_argument("--local-ipv4", required=True)
    parser.add_argument("--zone", default="us-east-2a")
    parser.add_argument("--values", default="", help="a JSON file of path -> value that wins, read at every request")
    given = parser.parse_args()
    values = usual(given.instance_id, given.local_ipv4, given.zone)
    FakeMetadata(values, (given.host, given.port), given.values).serve_forever()


if __name__ == "__main__":
    main()
