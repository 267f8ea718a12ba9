"""moto's server on loopback with its gaps closed, in this process.

`GET /emulator/report` answers {"gaps": {"create": [types], ...}, "recorded": [{"type", "id", "properties"}]}.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# moto would reach for an account's and a region's settings of the machine it runs on.
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from tests.emulator import capacity, cloudformation, network, operations, recorded, scaling, services
from tests.emulator.api import Api
from tests.emulator.kinds import install

REPORT = "/emulator/report"
HOST = "127.0.0.1"

Start = Callable[..., Any]
Application = Callable[[dict[str, Any], Start], Iterable[bytes]]


class _Handler(MotoRequestHandler):  # type: ignore[misc]
    def log_request(self, *_: object) -> None:
        """Thousands of lines a run; errors are still logged."""


class Emulator:
    """One per process: moto keeps its state in modules."""

    def __init__(self, port: int = 0) -> None:
        """Port 0 takes a free one; raises `OSError` when the one given is taken."""
        self._gaps = cloudformation.Gaps()
        moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(HOST, port, self._with_report(moto), threaded=True, request_handler=_Handler)
        self._server.daemon_threads = True
        # By name: botocore and the CDK CLI parse the bucket out of a host that is a name, not out of an address.
        self.endpoint = f"http://localhost:{self._server.port}"
        api = Api(self.endpoint)
        install((*network.KINDS, *scaling.KINDS, *services.KINDS, *recorded.KINDS), api)
        operations.install()
        capacity.install()
        cloudformation.install(self._gaps)

    def serve(self) -> None:
        """Returns when `stop` was called."""
        self._server.serve_forever()

    def start(self) -> None:
        """Serves from a thread of its own."""
        threading.Thread(target=self.serve, name="emulator", daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def report(self) -> Mapping[str, Any]:
        return {"gaps": self._gaps.listed(), "recorded": recorded.listed()}

    def _with_report(self, moto: Application) -> Application:
        def application(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
            if environ.get("PATH_INFO") != REPORT:
                return moto(environ, start)
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self.report()).encode()]

        return application
