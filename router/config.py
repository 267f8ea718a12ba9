"""Command line and environment -> settings, each fault with what to do about it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from router.discovery import Ec2, EnginesFile, Source, SourceFault, Static
from runtime.parameters import (
    TUNABLES_FILE_ENV,
    ParameterError,
    Reader,
    Tunables,
    Value,
    add_arguments,
    for_reader,
    from_arguments,
)

_KEEP_ALIVE = 75
"""Above the 60 s idle time with which a load balancer comes."""

_KINDS = "--prefill URL --decode URL, or --engines-file PATH, or --engines-ec2 DEPLOYMENT"
# EC2 takes * and ? in a tag's value for patterns: another deployment's engines would be found.
_DEPLOYMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Settings:
    source: Source
    host: str
    port: int
    keep_alive: int
    """Seconds that an idle connection of a client stays open."""
    given: Mapping[str, Value]
    """Tunables of the command line and the environment, which win over the file's."""
    tunables_file: Path | None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line; argparse's own puts all the options before it."""
        self.exit(2, f"{self.prog}: {message}\n")


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port. hint: set 0 to 65535")
    return int(text)


def _seconds(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of whole seconds. hint: set 1 or more")
    return int(text)


def _deployment(text: str) -> str:
    if not _DEPLOYMENT.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a deployment. hint: letters, digits, dots, dashes, underscores"
        )
    return text


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m router",
        description="An OpenAI-compatible endpoint in front of prefill and decode engines, which gives KV blocks back.",
    )
    engines = parser.add_argument_group("engines", f"one of: {_KINDS}")
    engines.add_argument("--prefill", action="append", metavar="URL", help="a prefill engine; repeat for more")
    engines.add_argument("--decode", action="append", metavar="URL", help="a decode engine; repeat for more")
    engines.add_argument(
        "--engines-file",
        type=Path,
        metavar="PATH",
        help="JSON with the engines of both roles, followed while it changes",
    )
    engines.add_argument(
        "--engines-ec2",
        type=_deployment,
        metavar="DEPLOYMENT",
        help="the running EC2 instances with this deployment's tags",
    )
    engines.add_argument("--region", help="AWS region of --engines-ec2 (default: as boto3 finds it)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=_port, default=8000, help="port to listen on (default %(default)s)")
    parser.add_argument(
        "--keep-alive",
        type=_seconds,
        default=_KEEP_ALIVE,
        metavar="SECONDS",
        help="how long an idle connection stays open; set it above the idle time of a load balancer in front, which else "
        "sends requests on connections that are being closed and answers 502 (default %(default)s)",
    )
    return parser


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Exits with status 2 and one line that says what to change."""
    parser = _parser()
    parameters = for_reader(Reader.ROUTER)
    add_arguments(parser, parameters)
    arguments = parser.parse_args(argv)
    try:
        source = _source(arguments)
        given = from_arguments(arguments, environ, parameters)
        Tunables.of(given)
    except (ParameterError, SourceFault) as error:
        parser.error(str(error))
    file = environ.get(TUNABLES_FILE_ENV)
    return Settings(source, arguments.host, arguments.port, arguments.keep_alive, given, Path(file) if file else None)


def _source(arguments: argparse.Namespace) -> Source:
    """Raises `SourceFault`, also for none or several."""
    static = bool(arguments.prefill or arguments.decode)
    kinds = {
        "--prefill and --decode": static,
        "--engines-file": arguments.engines_file is not None,
        "--engines-ec2": arguments.engines_ec2 is not None,
    }
    chosen = [name for name, is_given in kinds.items() if is_given]
    if len(chosen) != 1:
        found = f"engines come from {' and '.join(chosen)}" if chosen else "no engines given"
        raise SourceFault("options", f"{found}. hint: one of {_KINDS}")
    if arguments.region is not None and arguments.engines_ec2 is None:
        raise SourceFault("options", f"--region {arguments.region} is for --engines-ec2 only. hint: leave it out")
    if arguments.engines_file is not None:
        return EnginesFile(arguments.engines_file)
    if arguments.engines_ec2 is not None:
        return Ec2(arguments.engines_ec2, arguments.region)
    for role in ("prefill", "decode"):
        if not getattr(arguments, role):
            raise SourceFault("options", f"no {role} engine given. hint: --{role} URL")
    return Static(arguments.prefill, arguments.decode)
