"""AWS on loopback, for the tests and `make deploy-local`: `python -m tests.emulator --port 5000`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.emulator", description=(__doc__ or "").split(":", 1)[0])
    parser.add_argument("--port", type=int, default=5000, help="0 takes a free one")
    parser.add_argument("--until-eof", action="store_true", help="end when the standard input closes")
    arguments = parser.parse_args(argv)
    from tests.emulator.server import Emulator

    emulator = Emulator(arguments.port)

    def end(number: int, frame: FrameType | None) -> None:
        # Not in the handler itself: `shutdown` waits for the loop that this handler has interrupted.
        threading.Thread(target=emulator.stop, daemon=True).start()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    if arguments.until_eof:
        threading.Thread(target=_wait_for_eof, daemon=True).start()
    print(f"emulator: {emulator.endpoint}", flush=True)
    emulator.serve()
    return 0


def _wait_for_eof() -> None:
    """The kernel closes a killed parent's end of the pipe."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
