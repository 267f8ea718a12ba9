"""The one schema of every tunable: name, type, unit, default, bounds, who reads it, live or restart.

Command-line flags, environment variables, the docs table, SSM parameters, the connector and the router all derive from
`PARAMETERS`. This module imports the standard library only, so that it loads inside vLLM and inside CDK alike.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

Value = int | float | bool | str

ENV_PREFIX = "KVR_"
TUNABLES_FILE_ENV = "KVR_TUNABLES_FILE"
"""Names the file in which a node's agent keeps the live values."""

NO_TIME = "none"
TIME_PATTERN = "20[2-9][0-9]-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]Z"


class Kind(StrEnum):
    INTEGER = "integer"
    NUMBER = "number"
    FLAG = "flag"
    TEXT = "text"
    TIME = "time"
    """In UTC, like 2027-03-01T11:30Z, or `none`."""


class Reader(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    ROUTER = "router"
    AGENT = "agent"
    """`runtime.agent`, beside the engine or router of each node."""


class Apply(StrEnum):
    LIVE = "live"
    RESTART = "restart"


class ParameterError(ValueError):
    """A value outside the schema. The text names the parameter, the value and the fix."""


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    kind: Kind
    unit: str
    default: Value
    sentence: str
    readers: tuple[Reader, ...]
    apply: Apply
    minimum: float = -math.inf
    maximum: float = math.inf
    choices: tuple[str, ...] = ()

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def bounds(self) -> str:
        if self.choices:
            return " or ".join(self.choices)
        if self.kind is Kind.FLAG:
            return "true or false"
        if self.kind is Kind.TEXT:
            return "any text"
        if self.kind is Kind.TIME:
            return "none or a time in UTC like 2027-03-01T11:30Z"
        return f"{_plain(self.minimum)} to {_plain(self.maximum)}"

    def parse(self, text: str) -> Value:
        """Text from a flag, the environment or SSM -> a checked value. Raises `ParameterError`."""
        try:
            value = _PARSERS[self.kind](text.strip())
        except ValueError:
            raise ParameterError(
                f"{self.name} is {text!r}, expected {self.kind.value}. hint: set {self.bounds}"
            ) from None
        return self.check(value)

    def check(self, value: Value) -> Value:
        """Returns `value` unchanged. Raises `ParameterError` when it is out of bounds or not one of the choices."""
        if self.choices and value not in self.choices:
            raise ParameterError(f"{self.name} is {value!r}. hint: set {self.bounds}")
        if isinstance(value, int | float) and not isinstance(value, bool) and not self.minimum <= value <= self.maximum:
            raise ParameterError(f"{self.name} is {value} {self.unit}. hint: set {self.bounds}")
        return value


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def _parse_flag(text: str) -> bool:
    try:
        return {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def _parse_time(text: str) -> str:
    if text != NO_TIME and not re.fullmatch(TIME_PATTERN, text):
        raise ValueError(text)
    return text


_PARSERS: Mapping[Kind, Callable[[str], Value]] = {
    Kind.INTEGER: int,
    Kind.NUMBER: float,
    Kind.FLAG: _parse_flag,
    Kind.TEXT: str,
    Kind.TIME: _parse_time,
}

_ROUTER = (Reader.ROUTER,)
_ENGINES = (Reader.PREFILL, Reader.DECODE)
_ALL = (Reader.PREFILL, Reader.DECODE, Reader.ROUTER)
_AGENT = (Reader.AGENT,)

# A row a tunable: the formatter would give each of its words a line.
# fmt: off
PARAMETERS: tuple[Parameter, ...] = (
    Parameter(
        "round_trip", Kind.FLAG, "", True,
        "Give the KV blocks that decode holds back to prefill on the next turn.",
        _ALL, Apply.RESTART,
    ),
    Parameter(
        "kv_recompute_threshold", Kind.INTEGER, "tokens", 64,
        "Prefill computes instead of pulling when fewer tokens than this would come from decode.",
        (Reader.PREFILL,), Apply.LIVE, 0, 1_000_000,
    ),
    Parameter(
        "decoder_kv_blocks_ttl", Kind.INTEGER, "seconds", 480,
        "How long decode keeps a finished turn's KV blocks for the next turn.",
        (Reader.DECODE, Reader.ROUTER), Apply.LIVE, 6, 86_400,
    ),
    Parameter(
        "kv_lease_duration", Kind.INTEGER, "seconds", 30,
        "How long prefill keeps a finished prompt's KV blocks for decode to fetch.",
        _ENGINES, Apply.RESTART, 6, 3_600,
    ),
    Parameter(
        "block_size", Kind.INTEGER, "tokens", 32,
        "Tokens in a KV block; only whole blocks are given back.",
        _ENGINES, Apply.RESTART, 8, 1_024,
    ),
    Parameter(
        "nixl_progress_delay", Kind.INTEGER, "microseconds", 0,
        "How long NIXL's UCX progress thread sleeps between polls; 0 spins a core, above 0 suits engines that share few cores.",
        _ENGINES, Apply.RESTART, 0, 100_000,
    ),
    Parameter(
        "kv_cache_gib", Kind.INTEGER, "GiB", 1,
        "Memory for KV blocks of an engine on a CPU.",
        _ENGINES, Apply.RESTART, 1, 1_024,
    ),
    Parameter(
        "handle_ttl", Kind.NUMBER, "seconds", 450.0,
        "How long the router offers a handle, from the end of decode's turn; stays below decoder_kv_blocks_ttl.",
        _ROUTER, Apply.LIVE, 0.1, 86_400,
    ),
    Parameter(
        "max_conversations", Kind.INTEGER, "conversations", 100_000,
        "Handles and decode affinities the router remembers; the least recently used go first.",
        _ROUTER, Apply.RESTART, 1, 10_000_000,
    ),
    Parameter(
        "max_body_bytes", Kind.INTEGER, "bytes", 32 * 1024 * 1024,
        "Largest request body accepted; a larger one gets 413.",
        _ROUTER, Apply.LIVE, 1_024, 1024 * 1024 * 1024,
    ),
    Parameter(
        "connect_timeout", Kind.NUMBER, "seconds", 5.0,
        "How long the router waits for a connection to an engine.",
        _ROUTER, Apply.LIVE, 0.05, 300,
    ),
    Parameter(
        "prefill_timeout", Kind.NUMBER, "seconds", 300.0,
        "How long the router waits for prefill's answer.",
        _ROUTER, Apply.LIVE, 0.05, 3_600,
    ),
    Parameter(
        "decode_idle_timeout", Kind.NUMBER, "seconds", 300.0,
        "Longest silence of decode, before its first byte and between two reads.",
        _ROUTER, Apply.LIVE, 0.05, 3_600,
    ),
    Parameter(
        "max_attempts", Kind.INTEGER, "attempts", 2,
        "Prefill and decode attempts one request may use in all before its first byte, the first included.",
        _ROUTER, Apply.LIVE, 1, 5,
    ),
    Parameter(
        "health_interval", Kind.NUMBER, "seconds", 1.0,
        "Time between two health checks of an engine.",
        _ROUTER, Apply.LIVE, 0.05, 60,
    ),
    Parameter(
        "drain_timeout", Kind.NUMBER, "seconds", 30.0,
        "How long open streams may go on after SIGTERM.",
        _ROUTER, Apply.LIVE, 0, 3_600,
    ),
    Parameter(
        "log_level", Kind.TEXT, "", "info",
        "Lowest level of log lines written; engines and the router.",
        _ALL, Apply.LIVE, choices=("debug", "info", "warning", "error"),
    ),
    Parameter(
        "agent_interval", Kind.NUMBER, "seconds", 10.0,
        "Time between two reads of Parameter Store by a node's agent, hence how soon a live change arrives.",
        _AGENT, Apply.LIVE, 0.2, 300,
    ),
    Parameter(
        "node_drain_timeout", Kind.NUMBER, "seconds", 600.0,
        "How long a node that is to leave may finish its open requests.",
        _AGENT, Apply.LIVE, 0, 3_600,
    ),
    Parameter(
        "transfer_floor", Kind.NUMBER, "MB/s", 1_000.0,
        "KV transfers slower than this are reported as a fall-back from EFA to TCP; 0 never reports.",
        _AGENT, Apply.LIVE, 0, 1_000_000,
    ),
    Parameter(
        "ttft_target", Kind.NUMBER, "seconds", 2.5,
        "Time to first token that the alarm counts as good; one of the router's histogram bounds.",
        _AGENT, Apply.LIVE, 0.005, 300,
    ),
    Parameter(
        "capacity_block_end", Kind.TIME, "", NO_TIME,
        "When the Capacity Block of the engines ends; they drain 45 minutes before.",
        _AGENT, Apply.LIVE,
    ),
)
# fmt: on

BY_NAME: Mapping[str, Parameter] = MappingProxyType({p.name: p for p in PARAMETERS})


def for_reader(reader: Reader) -> tuple[Parameter, ...]:
    return tuple(p for p in PARAMETERS if reader in p.readers)


@dataclass(frozen=True, slots=True)
class Tunables:
    """A complete, checked set of values. The typed getters raise `KeyError` for a name the schema lacks."""

    values: Mapping[str, Value]

    @classmethod
    def of(cls, given: Mapping[str, Value] | None = None) -> Tunables:
        """Defaults overlaid with `given`, each checked, then checked against each other. Raises `ParameterError`."""
        merged: dict[str, Value] = {p.name: p.default for p in PARAMETERS}
        for name, value in (given or {}).items():
            merged[name] = lookup(name).check(value)
        faults = conflicts(merged)
        if faults:
            raise ParameterError("; ".join(faults))
        return cls(MappingProxyType(merged))

    def integer(self, name: str) -> int:
        return int(self.values[name])

    def number(self, name: str) -> float:
        return float(self.values[name])

    def flag(self, name: str) -> bool:
        return bool(self.values[name])

    def text(self, name: str) -> str:
        return str(self.values[name])


def lookup(name: str) -> Parameter:
    """Raises `ParameterError` naming the known parameters."""
    try:
        return BY_NAME[name]
    except KeyError:
        raise ParameterError(f"no parameter is called {name!r}. hint: known are {', '.join(BY_NAME)}") from None


def conflicts(values: Mapping[str, Value]) -> list[str]:
    """Faults between parameters that are each within their own bounds."""
    faults = []
    handle_ttl, blocks_ttl = float(values["handle_ttl"]), float(values["decoder_kv_blocks_ttl"])
    if values["round_trip"] and handle_ttl >= blocks_ttl:
        faults.append(
            f"handle_ttl {handle_ttl:g} s is not below decoder_kv_blocks_ttl {blocks_ttl:g} s; expired blocks would be offered. "
            f"hint: set handle_ttl below {blocks_ttl:g}"
        )
    return faults


def from_environment(environ: Mapping[str, str], parameters: Iterable[Parameter] = PARAMETERS) -> dict[str, Value]:
    """The parameters that `environ` sets, as `KVR_<NAME>`. Raises `ParameterError`."""
    return {p.name: p.parse(environ[p.env]) for p in parameters if p.env in environ}


def add_arguments(parser: argparse.ArgumentParser, parameters: Iterable[Parameter]) -> None:
    """A flag per parameter. Absent flags stay `None`, so that the environment and the default can fill them."""
    group = parser.add_argument_group("tunables", "each also read from the environment, e.g. KVR_HANDLE_TTL")
    for p in parameters:
        unit = f" {p.unit}" if p.unit else ""
        default = str(p.default).lower() if p.kind is Kind.FLAG else p.default
        group.add_argument(
            p.flag,
            dest=p.name,
            metavar=p.kind.value.upper(),
            default=None,
            help=f"{p.sentence} ({p.bounds}; default {default}{unit}; env {p.env})",
        )


def from_arguments(
    arguments: argparse.Namespace, environ: Mapping[str, str], parameters: Iterable[Parameter]
) -> dict[str, Value]:
    """Explicit flag over environment; what neither sets is absent. Raises `ParameterError`."""
    chosen = tuple(parameters)
    given = from_environment(environ, chosen)
    for p in chosen:
        text = getattr(arguments, p.name, None)
        if text is not None:
            given[p.name] = p.parse(text)
    return given


class TunablesFile:
    """The live values of a node, as its agent writes them: a JSON object of name -> text. Only owner of the current set.

    `given`, from flags and environment, wins over the file.
    """

    def __init__(self, path: Path, given: Mapping[str, Value]) -> None:
        self._path = path
        self._given = dict(given)
        self._seen: tuple[int, int] | None = None
        self.current = Tunables.of(given)
        self.fault = ""
        """Why the file as it is now was not taken; empty when it was."""

    def poll(self) -> Tunables | None:
        """The new set when the file has changed and is valid; else None, and the old set stays."""
        try:
            stat = self._path.stat()
            # A writer replaces the file, so that each version is another inode or time.
            seen = (stat.st_ino, stat.st_mtime_ns)
            if seen == self._seen:
                return None
            text = self._path.read_text()
        except OSError as error:
            self.fault = f"{self._path}: {error.strerror}"
            return None
        self._seen = seen
        try:
            values = parse_all(json.loads(text)) | self._given
            fresh = Tunables.of(values)
        except ValueError as error:
            self.fault = f"{self._path}: {error}"
            return None
        self.fault = ""
        if fresh == self.current:
            return None
        self.current = fresh
        return fresh


def parse_all(texts: object) -> dict[str, Value]:
    """Name -> text to checked values; names that this version lacks are left out. Raises `ParameterError` for all faults."""
    if not isinstance(texts, Mapping):
        raise ParameterError("expected a JSON object of name and text")
    values: dict[str, Value] = {}
    faults = []
    for name, text in texts.items():
        if name in BY_NAME:
            try:
                values[name] = BY_NAME[name].parse(str(text))
            except ParameterError as error:
                faults.append(str(error))
    if faults:
        raise ParameterError("; ".join(faults))
    return values
