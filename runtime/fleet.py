"""The whole system on one machine: prefill engines, decode engines and a router, as processes on loopback.

    with Fleet(FleetOptions(model="models/tiny")) as fleet:
        post(fleet.router_url + "/v1/chat/completions", ...)

Start it from the main thread: Linux ends a child told to die with its parent when the thread that started it ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path

from runtime.command import BLOCK_MULTIPLE, EngineSpec, argv, environment
from runtime.janitor import Janitor
from runtime.parameters import BY_NAME, Reader, Tunables, Value, for_reader
from runtime.process import Child

PLUGIN_GROUP = "vllm.general_plugins"
PLUGINS = frozenset({"kv_roundtrip_streaming", "kv_roundtrip_progress"})

_PREFIX = "kv-roundtrip-"
_START_LIMIT = 300.0
_STOP_LIMIT = 15.0
_PROJECT = Path(__file__).resolve().parent.parent

# Engines that share the cores of one machine must not spin on them, see connector/progress.py.
_LOCAL_PROGRESS_DELAY = 1_000

Say = Callable[[str], None]


class FleetError(RuntimeError):
    """The fleet could not start or went down. The text says why and what to do."""


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """`model` is a folder or a hub id. Port 0 means any free one. `values` are tunables by name, the rest default."""

    model: str
    served_name: str = "local"
    prefill: int = 1
    decode: int = 1
    port: int = 0
    dtype: str = "float32"
    max_model_len: int | None = None
    values: Mapping[str, Value] = field(default_factory=dict)
    stock_connector: bool = False
    prefill_arguments: tuple[str, ...] = ()
    decode_arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """More environment variables of the engines."""


class Server(Child):
    """A child that serves HTTP on `port` of loopback."""

    def __init__(
        self,
        name: str,
        port: int,
        ready: str,
        argv: list[str],
        environ: Mapping[str, str],
        folder: Path,
        janitor: Janitor,
    ) -> None:
        super().__init__(name, argv, environ, folder / f"{name}.log", janitor)
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._ready = ready

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + self._ready, timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


class Fleet:
    def __init__(self, options: FleetOptions, say: Say = lambda _: None) -> None:
        """Raises `FleetError`, before anything is started, for a port that is taken or a block size no CPU engine has."""
        self._options = options
        self._say = say
        self._tunables = Tunables.of({"nixl_progress_delay": _LOCAL_PROGRESS_DELAY, **options.values})
        if self._tunables.integer("block_size") % BLOCK_MULTIPLE:
            raise FleetError(
                f"block_size is {self._tunables.integer('block_size')} tokens; engines on a CPU take multiples of "
                f"{BLOCK_MULTIPLE}. hint: set {BLOCK_MULTIPLE}, 64 or 128"
            )
        self.folder = Path(tempfile.gettempdir()) / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        """Logs and what engines would leave in /tmp; made by `start`, removed by `stop`."""
        self._janitor = Janitor(self.folder, _with_project(os.environ))
        engines = options.prefill + options.decode
        taken = [options.port] if options.port else []
        with _free_ports(2 * engines + 1, taken) as ports:
            router_port = options.port or ports[-1]
            self.prefill = [self._engine(Reader.PREFILL, i, ports) for i in range(options.prefill)]
            self.decode = [self._engine(Reader.DECODE, i, ports) for i in range(options.decode)]
        self._routers = [self._router("router", router_port, self._tunables)]

    @property
    def router(self) -> Server:
        return self._routers[0]

    @property
    def router_url(self) -> str:
        return self.router.url

    @property
    def engines(self) -> list[Server]:
        return [*self.prefill, *self.decode]

    @property
    def servers(self) -> list[Server]:
        return [*self.engines, *self._routers]

    def __enter__(self) -> Fleet:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts all, engines side by side; returns when the router can serve a turn. Raises `FleetError`."""
        if not self._options.stock_connector:
            _require_plugins()
        _remove_stale()
        self.folder.mkdir(mode=0o700)
        for server in self.engines:
            self._scratch(server.name).mkdir()
        self._janitor.start()
        for server in self.servers:
            server.start()
        self.wait(self.servers)

    def wait(self, servers: list[Server], limit: float = _START_LIMIT) -> None:
        """Returns when all `servers` are ready. Raises `FleetError` when one ends first or `limit` seconds pass."""
        began = time.monotonic()
        spoken = 0.0
        waiting = list(servers)
        while waiting:
            for server in tuple(waiting):
                if not server.is_running:
                    raise FleetError(f"{server.name} ended while it started. Its last lines:\n{server.last_lines()}")
                if server.is_ready():
                    waiting.remove(server)
                    self._say(f"{server.name} is ready after {time.monotonic() - began:.0f} s")
            passed = time.monotonic() - began
            if passed > limit:
                names = ", ".join(server.name for server in waiting)
                raise FleetError(f"{names} not ready after {limit:.0f} s. Last lines:\n{waiting[0].last_lines()}")
            if waiting and passed - spoken >= 10:
                spoken = passed
                self._say(f"{', '.join(server.name for server in waiting)} still starting ({passed:.0f} s)")
            time.sleep(0.25)

    def add_router(self, name: str, values: Mapping[str, Value]) -> Server:
        """Another router on the same engines, with other tunables; ready when this returns."""
        with _free_ports(1, []) as ports:
            tunables = Tunables.of({**self._options.values, **values})
            router = self._router(name, ports[0], tunables)
        self._routers.append(router)
        router.start()
        self.wait([router])
        return router

    def stop(self) -> None:
        """Ends every process and removes the folder; a second Ctrl-C does not cut this short."""
        with _unhurried():
            threads = [threading.Thread(target=server.stop, args=(_STOP_LIMIT,)) for server in self.servers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self._janitor.dismiss()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _engine(self, role: Reader, index: int, ports: list[int]) -> Server:
        options = self._options
        name = f"{role.value}-{index}"
        spec = EngineSpec(
            role=role,
            model=options.model,
            served_name=options.served_name,
            port=ports.pop(0),
            side_channel_port=ports.pop(0),
            tunables=self._tunables,
            dtype=options.dtype,
            max_model_len=options.max_model_len,
            stock_connector=options.stock_connector,
            extra_arguments=options.prefill_arguments if role is Reader.PREFILL else options.decode_arguments,
        )
        environ = environment(spec, _with_project(os.environ), self._scratch(name)) | dict(options.environment)
        return Server(name, spec.port, "/health", argv(spec), environ, self.folder, self._janitor)

    def _router(self, name: str, port: int, tunables: Tunables) -> Server:
        command = [sys.executable, "-m", "router", "--host", "127.0.0.1", "--port", str(port)]
        for engine in self.prefill:
            command += ["--prefill", engine.url]
        for engine in self.decode:
            command += ["--decode", engine.url]
        for parameter in for_reader(Reader.ROUTER):
            value = tunables.values[parameter.name]
            if value != parameter.default:
                command += [parameter.flag, str(value)]
        environ = {key: value for key, value in os.environ.items() if key not in {p.env for p in BY_NAME.values()}}
        return Server(name, port, "/ready", command, _with_project(environ), self.folder, self._janitor)

    def _scratch(self, name: str) -> Path:
        return self.folder / name


def _with_project(environ: Mapping[str, str]) -> dict[str, str]:
    """The children find our packages whatever folder the parent runs in."""
    path = os.pathsep.join(part for part in (str(_PROJECT), environ.get("PYTHONPATH")) if part)
    return {**environ, "PYTHONPATH": path}


def _require_plugins() -> None:
    """vLLM goes without a plugin that it does not find: streams would carry no handle and idle engines would spin."""
    missing = PLUGINS - {plugin.name for plugin in entry_points(group=PLUGIN_GROUP)}
    if missing:
        raise FleetError(
            f"vLLM would not find our plugins {', '.join(sorted(missing))}: this project is not installed in {sys.prefix}. "
            "hint: run scripts/setup.sh local"
        )


def require_free(port: int) -> None:
    """Raises `FleetError` when something listens on `port`; 0 stands for any free port."""
    with _free_ports(0, [port] if port else []):
        pass


@contextlib.contextmanager
def _free_ports(number: int, wanted: list[int]) -> Iterator[list[int]]:
    """`number` free loopback ports, held until the block ends so that no two of them are the same; `wanted` must be free."""
    with contextlib.ExitStack() as held:
        for port in wanted:
            listener = held.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError as error:
                raise FleetError(
                    f"port {port} can't be used: {error.strerror}. hint: stop what listens there or choose another --port"
                ) from None
        ports: list[int] = []
        for port in _fixed_ports():
            if len(ports) == number:
                break
            listener = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listener.bind(("127.0.0.1", port))
                ports.append(port)
        yield ports


def _fixed_ports(setting: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> list[int]:
    """Ports that the kernel gives to no outgoing connection, in random order.

    An engine binds its ports half a minute after they were chosen; a free one of the kernel's range may be gone by then.
    """
    first = int(setting.read_text().split()[0])
    ports = list(range(max(1_024, first - 16_384), first))
    secrets.SystemRandom().shuffle(ports)
    return ports


@contextlib.contextmanager
def _unhurried() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {which: signal.signal(which, signal.SIG_IGN) for which in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


def _remove_stale() -> None:
    """Folders of runs that were killed before they could clean up."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        pid = folder.name.removeprefix(_PREFIX).split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)
