"""Command line and environment -> settings, each fault with what to do about it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from router.upstream import Client
from runtime.parameters import ParameterError, Reader, Tunables, add_arguments, for_reader, from_arguments


@dataclass(frozen=True, slots=True)
class Settings:
    prefill: tuple[str, ...]
    decode: tuple[str, ...]
    host: str
    port: int
    tunables: Tunables


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line; argparse's own puts all the options before it."""
        self.exit(2, f"{self.prog}: {message}\n")


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port. hint: set 0 to 65535")
    return int(text)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Exits with status 2 and one line that says what to change."""
    parser = _Parser(
        prog="python -m router",
        description="An OpenAI-compatible endpoint in front of prefill and decode engines, which gives KV blocks back.",
    )
    parser.add_argument(
        "--prefill", action="append", required=True, metavar="URL", help="a prefill engine; repeat for more"
    )
    parser.add_argument(
        "--decode", action="append", required=True, metavar="URL", help="a decode engine; repeat for more"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=_port, default=8000, help="port to listen on (default %(default)s)")
    parameters = for_reader(Reader.ROUTER)
    add_arguments(parser, parameters)
    arguments = parser.parse_args(argv)
    try:
        for url in (*arguments.prefill, *arguments.decode):
            Client(url, connect_timeout=1)
        tunables = Tunables.of(from_arguments(arguments, environ, parameters))
    except (ParameterError, ValueError) as error:
        parser.error(str(error))
    return Settings(tuple(arguments.prefill), tuple(arguments.decode), arguments.host, arguments.port, tunables)
