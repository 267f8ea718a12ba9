"""Network namespaces as hosts of one private network, joined by a bridge that has no way out."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_CLONE_NEWNET = 0x40000000
_PREFIX_BITS = 16

T = TypeVar("T")


def run(*command: str) -> None:
    """Raises `RuntimeError` with what the command said."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


class Network:
    """The bridge, in a namespace of its own: nothing of it is seen on this machine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._members = 0

    def start(self) -> None:
        run("ip", "netns", "add", self.name)
        run("ip", "-n", self.name, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.name, "link", "set", "bridge", "up")

    def join(self, namespace: str, address: str) -> None:
        """Makes `namespace` with eth0 on the bridge, and the address of the metadata service on its loopback."""
        self._members += 1
        port = f"port{self._members}"
        run("ip", "netns", "add", namespace)
        run("ip", "-n", self.name, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        run("ip", "-n", self.name, "link", "set", port, "master", "bridge", "up")
        run("ip", "-n", namespace, "address", "add", f"{address}/{_PREFIX_BITS}", "dev", "eth0")
        run("ip", "-n", namespace, "address", "add", "169.254.169.254/32", "dev", "lo")
        for device in ("lo", "eth0"):
            run("ip", "-n", namespace, "link", "set", device, "up")

    def leave(self, namespace: str) -> None:
        subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, timeout=30, check=False)

    def stop(self) -> None:
        self.leave(self.name)


def inside(namespace: str, work: Callable[[], T]) -> T:
    """`work` with the network of `namespace`: in a thread, as the namespace is a thread's and a socket keeps its own."""
    found: list[T] = []
    failed: list[BaseException] = []

    def enter() -> None:
        handle = os.open(Path("/run/netns") / namespace, os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(handle, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns {namespace}")
            found.append(work())
        except BaseException as error:
            failed.append(error)
        finally:
            os.close(handle)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def listen(namespace: str, address: str, port: int) -> socket.socket:
    """A listening socket in `namespace`, served by this process."""

    def bind() -> socket.socket:
        made = socket.create_server((address, port), backlog=64)
        made.settimeout(None)
        return made

    return inside(namespace, bind)


class Relay:
    """Connections that `listener` accepts go on to `target` as this process reaches it."""

    def __init__(self, listener: socket.socket, target: tuple[str, int]) -> None:
        self._listener = listener
        self._target = target
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError), socket.create_connection(self._target, 30) as far:
            far.settimeout(None)
            back = threading.Thread(target=_pump, args=(far, near), daemon=True)
            back.start()
            _pump(near, far)
            back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Until `source` ends; then `sink` hears of it."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
