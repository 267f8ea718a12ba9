"""`python -m scripts.tune list|get|set|watch`: the tunables of a running deployment, in Parameter Store.

A value is checked against the schema and against the other values before anything is written. A live one reaches routers
and engines within agent_interval; the others wait for a restart. Exit codes: see `Exit`.
"""

from __future__ import annotations

import argparse
import difflib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from runtime.parameters import (
    BY_NAME,
    PARAMETERS,
    Apply,
    Kind,
    Parameter,
    ParameterError,
    Value,
    conflicts,
)
from runtime.source import AWS_ERRORS, client, explain, read_path

_PREFIX = "/kv-roundtrip"


class Exit(IntEnum):
    DONE = 0
    FAILED = 1
    """Refused, or not possible."""
    USAGE = 2


class TuneError(RuntimeError):
    """The text is what the user reads, hint included."""


class Store:
    """The parameters below one path. Its methods raise what boto3 raises, and `TuneError`."""

    def __init__(self, ssm: Any, prefix: str) -> None:
        self._ssm = ssm
        self.prefix = prefix

    def texts(self) -> dict[str, str]:
        found = {name: text for name, (_, text) in read_path(self._ssm, self.prefix).items() if name in BY_NAME}
        if not found:
            raise TuneError(
                f"no tunable below {self.prefix}. hint: give the deployment's --prefix and --region; its parameters stack "
                "makes them"
            )
        return found

    def write(self, changes: Mapping[str, str]) -> None:
        """In the order of `changes`. Whatever else a parameter has stays as it is."""
        described = self._described()
        done: list[str] = []
        for name, text in changes.items():
            kept = described.get(name)
            if kept is None:
                raise TuneError(
                    f"{self.prefix}/{name} is not there; {_written(done)}. hint: deploy the parameters stack"
                )
            try:
                # What AWS keeps of a parameter that is written again it does not say, so nothing is left out.
                self._ssm.put_parameter(Name=f"{self.prefix}/{name}", Value=text, Overwrite=True, **kept)
            except AWS_ERRORS as error:
                raise TuneError(f"{name} could not be written; {_written(done)}. {explain(error)}") from None
            done.append(name)

    def _described(self) -> dict[str, dict[str, str]]:
        chosen = [{"Key": "Path", "Option": "OneLevel", "Values": [self.prefix]}]
        pages = self._ssm.get_paginator("describe_parameters").paginate(ParameterFilters=chosen)
        kept = ("Type", "Description", "AllowedPattern", "Tier", "DataType")
        return {
            str(found["Name"]).removeprefix(f"{self.prefix}/"): {key: found[key] for key in kept if found.get(key)}
            for page in pages
            for found in page["Parameters"]
        }


def _written(names: Sequence[str]) -> str:
    return f"{', '.join(names)} written before" if names else "nothing was written"


def named(name: str) -> Parameter:
    """Raises `TuneError` with names that are near."""
    if name in BY_NAME:
        return BY_NAME[name]
    near = difflib.get_close_matches(name.replace("-", "_"), BY_NAME, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`list` shows all"
    raise TuneError(f"no tunable is called {name!r}. hint: {hint}")


def written(parameter: Parameter, value: Value) -> str:
    """As the parameter's AllowedPattern has it: `on` is true, 1e2 is 100."""
    if parameter.kind is Kind.FLAG:
        return str(value).lower()
    if parameter.kind is Kind.NUMBER:
        return f"{float(value):.10f}".rstrip("0").rstrip(".")
    return str(value)


def asked(assignments: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE -> name and text to write. Raises `TuneError` for all faults at once."""
    wanted: dict[str, str] = {}
    faults = []
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        try:
            parameter = named(name)
            if name in wanted:
                raise TuneError(f"{name} is given twice")
            wanted[name] = written(parameter, parameter.parse(text))
        except (TuneError, ParameterError) as error:
            faults.append(str(error))
    if faults:
        raise TuneError("\n       ".join(faults))
    return wanted


def valid(texts: Mapping[str, str]) -> dict[str, Value]:
    """What nodes make of these texts: the schema's default where one is missing or bad."""
    values: dict[str, Value] = {p.name: p.default for p in PARAMETERS}
    for name, text in texts.items():
        try:
            values[name] = BY_NAME[name].parse(text)
        except ParameterError:
            continue
    return values


def in_order(current: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """`wanted`, ordered so that nodes which read in between find no conflict, where there is such an order.

    Raises `TuneError` when the values would conflict in the end.
    """
    faults = conflicts(valid({**current, **wanted}))
    if faults:
        raise TuneError("\n       ".join(faults))
    now, left, ordered = dict(current), dict(wanted), dict[str, str]()
    while left:
        name = next((name for name in left if not conflicts(valid({**now, name: left[name]}))), next(iter(left)))
        now[name] = ordered[name] = left.pop(name)
    return ordered


def list_all(store: Store) -> None:
    texts = store.texts()
    rows = [("", "name", "value", "default", "unit", "bounds", "applies", "read by")]
    for p in PARAMETERS:
        default = written(p, p.default)
        text = texts.get(p.name)
        mark = " " if text is not None and _same(p, text) else "*"
        readers = " ".join(reader.value for reader in p.readers)
        rows.append(
            (mark, p.name, "(missing)" if text is None else text, default, p.unit, p.bounds, p.apply.value, readers)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"\n{store.prefix}; * differs from the default")


def _same(parameter: Parameter, text: str) -> bool:
    try:
        return parameter.parse(text) == parameter.default
    except ParameterError:
        return False


def get(store: Store, name: str) -> None:
    parameter = named(name)
    text = store.texts().get(parameter.name)
    if text is None:
        raise TuneError(f"{store.prefix}/{name} is not there. hint: deploy the parameters stack")
    print(text)


def set_values(store: Store, assignments: Sequence[str]) -> None:
    wanted = asked(assignments)
    current = store.texts()
    changes = {name: text for name, text in in_order(current, wanted).items() if current.get(name) != text}
    for name in wanted.keys() - changes.keys():
        print(f"{name} is {wanted[name]} already")
    if changes:
        store.write(changes)
    for name, text in changes.items():
        print(f"{name} {current.get(name, '(missing)')} -> {text} ({_effect(name, valid({**current, **changes}))})")


def _effect(name: str, values: Mapping[str, Value]) -> str:
    p = BY_NAME[name]
    readers = ", ".join(reader.value for reader in p.readers)
    if p.apply is Apply.LIVE:
        return f"live on {readers} within about {float(values['agent_interval']):g} s"
    return f"waits for a restart of {readers}"


def watch(store: Store, interval_s: float) -> None:
    """Prints each change until Ctrl-C. A read that fails is said once, and the watch goes on."""
    # A shell starts background jobs with it ignored, and Python then leaves it so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    texts = store.texts()
    print(f"watching {len(texts)} tunables below {store.prefix}; Ctrl-C ends", flush=True)
    fault = ""
    while True:
        time.sleep(interval_s)
        try:
            fresh = store.texts()
        except (*AWS_ERRORS, TuneError) as error:
            if explain(error) != fault:
                fault = explain(error)
                _say(f"can't read: {fault}")
            continue
        fault = ""
        for name in sorted(texts.keys() | fresh.keys()):
            old, new = texts.get(name), fresh.get(name)
            if old != new:
                _say(f"{name} {old or '(missing)'} -> {new or '(missing)'} ({BY_NAME[name].apply.value})")
        texts = fresh


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _prefix(text: str) -> str:
    if not text.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is no path. hint: give one like {_PREFIX}")
    return text.rstrip("/")


def _interval(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and 3600 seconds")
    return seconds


def _parser() -> argparse.ArgumentParser:
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--prefix", type=_prefix, default=_PREFIX, help="path of the tunables (default: %(default)s)")
    where.add_argument("--region", default="", help="AWS region (default: the environment's)")
    where.add_argument("--endpoint-url", default="", help="an emulator in place of AWS")
    parser = argparse.ArgumentParser(prog="python -m scripts.tune", description=(__doc__ or "").split("\n", 1)[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list", parents=[where], help="all tunables: value, default, bounds, who reads them")
    one = verbs.add_parser("get", parents=[where], help="one value")
    one.add_argument("name", metavar="NAME")
    some = verbs.add_parser("set", parents=[where], help="change values, all or none of a wrong set")
    some.add_argument("assignments", metavar="NAME=VALUE", nargs="+")
    looking = verbs.add_parser("watch", parents=[where], help="print changes until Ctrl-C")
    looking.add_argument(
        "--interval", type=_interval, default=2.0, help="seconds between two looks (default: %(default)g)"
    )
    return parser


def run(given: argparse.Namespace) -> None:
    store = Store(client("ssm", given.region, given.endpoint_url), given.prefix)
    if given.verb == "list":
        list_all(store)
    elif given.verb == "get":
        get(store, given.name)
    elif given.verb == "set":
        set_values(store, given.assignments)
    else:
        watch(store, given.interval)


def main(argv: Sequence[str]) -> int:
    parser = _parser()
    given = parser.parse_args(argv)
    for assignment in getattr(given, "assignments", ()):
        if "=" not in assignment:
            parser.error(f"{assignment!r} is not NAME=VALUE. hint: for example handle_ttl=300")
    try:
        run(given)
        sys.stdout.flush()
        return Exit.DONE
    except KeyboardInterrupt:
        return Exit.DONE if given.verb == "watch" else Exit.FAILED
    except BrokenPipeError:
        # Whoever read us, as in `list | head`, has enough; nothing more can be said to them at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except TuneError as error:
        print(f"error: {error}", file=sys.stderr)
    except (*AWS_ERRORS, ValueError) as error:
        # boto3 says ValueError to an endpoint that is no URL.
        print(f"error: {explain(error)}", file=sys.stderr)
    return Exit.FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
