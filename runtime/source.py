"""A node's tunables out of Parameter Store, kept as last known good in RUN/tunables.json; and its secrets, never kept.

A read counts only when two in a row agree: a value that changes between two pages must not give a set that never was.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    NoCredentialsError,
    NoRegionError,
)

from runtime.parameters import BY_NAME, PARAMETERS, ParameterError, Tunables, parse_all

AWS_ERRORS = (BotoCoreError, ClientError)

# With back-off and jitter; the waits of six attempts sum up to half a minute at most.
_CONFIG = Config(retries={"mode": "standard", "total_max_attempts": 6}, connect_timeout=2, read_timeout=10)
_READS = 6
"""Reads in a row after which a set that keeps changing is left alone until the next time."""


class SourceError(RuntimeError):
    """What was to be read can't be had. The text has a hint and no secret."""


class Unreachable(SourceError):
    """The same read may be answered later."""


def client(service: str, region: str, endpoint_url: str, connections: int = 10) -> Any:
    """A boto3 client; `endpoint_url` "" is AWS itself, and `region` "" what the environment says."""
    config = _CONFIG.merge(Config(max_pool_connections=connections))
    return boto3.client(service, region_name=region or None, endpoint_url=endpoint_url or None, config=config)


def explain(error: Exception) -> str:
    """An error of boto3 as one line, with a hint where there is something to do."""
    if isinstance(error, ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        text = f"{error.operation_name}: {code}: {error.response.get('Error', {}).get('Message', '')}".strip(": ")
        return f"{text}. hint: {_HINTS[code]}" if code in _HINTS else text
    if isinstance(error, NoCredentialsError):
        return "no AWS credentials. hint: a node needs its instance profile; elsewhere run `aws sso login`, or set AWS_PROFILE"
    if isinstance(error, NoRegionError):
        return "no AWS region. hint: give --region, or set AWS_DEFAULT_REGION"
    if isinstance(error, ConnectionError | HTTPClientError):
        return f"{error}. hint: check the route and the VPC endpoint, or the emulator's address"
    return str(error)


_DENIED = "the identity lacks this permission; see the node role in the engines or routing stack, or your own role"
_CREDENTIALS = "the credentials are wrong or have ended; log in again"
_CLOCK = "this machine's clock is wrong, see `chronyc tracking`; or else the credentials are"
_HINTS = {
    "AccessDenied": _DENIED,
    "AccessDeniedException": _DENIED,
    "UnauthorizedOperation": _DENIED,
    "403": _DENIED,
    "ExpiredToken": _CREDENTIALS,
    "ExpiredTokenException": _CREDENTIALS,
    "InvalidClientTokenId": _CREDENTIALS,
    "UnrecognizedClientException": _CREDENTIALS,
    "InvalidSignatureException": _CLOCK,
    "SignatureDoesNotMatch": _CLOCK,
    "RequestExpired": _CLOCK,
    "RequestTimeTooSkewed": _CLOCK,
    "ThrottlingException": "too many calls at once in this account and region; it passes, else raise agent_interval",
    "ParameterNotFound": "check its name; a deployment without it needs the stacks deployed again",
    "NoSuchBucket": "check the bucket's name and region",
}

Reading = Mapping[str, tuple[int, str]]
"""Name -> (version, text). Versions tell a value that went and came back from one that stayed."""


def read_path(ssm: Any, path: str) -> dict[str, tuple[int, str]]:
    """All pages of what is directly below `path`."""
    pages = ssm.get_paginator("get_parameters_by_path").paginate(Path=path, Recursive=False)
    prefix = path.rstrip("/") + "/"
    return {
        str(found["Name"]).removeprefix(prefix): (int(found["Version"]), str(found["Value"]))
        for page in pages
        for found in page["Parameters"]
    }


@dataclass(frozen=True, slots=True)
class Merged:
    texts: Mapping[str, str]
    faults: tuple[str, ...]
    """What was refused, each by name."""


def merge(kept: Mapping[str, str], read: Mapping[str, str]) -> Merged:
    """What a node goes on with. A bad or missing value keeps the old one; values that conflict keep the whole old set.

    Raises `SourceError` when values conflict and there is no old set to keep.
    """
    texts: dict[str, str] = {}
    faults = []
    for parameter in PARAMETERS:
        name = parameter.name
        old = kept.get(name)
        instead = f"{old} is kept" if old is not None else f"the default {parameter.default} is used"
        if name not in read:
            faults.append(f"{name} is missing; {instead}. hint: deploy the parameters stack again")
        else:
            try:
                parameter.parse(read[name])
            except ParameterError as error:
                faults.append(f"{error}; {instead}")
            else:
                texts[name] = read[name]
                continue
        if old is not None:
            texts[name] = old
    try:
        Tunables.of(parse_all(texts))
    except ParameterError as error:
        if not kept:
            raise SourceError(f"the tunables conflict: {error}") from None
        return Merged(kept, (*faults, f"the old set is kept: {error}"))
    return Merged(texts, tuple(faults))


@dataclass(frozen=True, slots=True)
class Outcome:
    changed: Mapping[str, tuple[str | None, str]]
    """Name -> (old text, new text) of what was written."""
    faults: tuple[str, ...]


class Source:
    """Only writer of the tunables file, whose content is the last known good set over restarts of the agent."""

    def __init__(self, ssm: Any, path: str, file: Path) -> None:
        self._ssm = ssm
        self._path = path
        self._file = file
        self._last: Reading | None = None
        self._kept = _kept(file)

    @property
    def texts(self) -> Mapping[str, str]:
        return self._kept

    def poll(self) -> Outcome:
        """Reads and, when something has changed, writes. Raises `SourceError`; the file and the old set stay then."""
        reading = self._agreed()
        if not BY_NAME.keys() & reading.keys():
            raise SourceError(
                f"no tunable below {self._path}. hint: deploy the parameters stack, or correct the path in the node's configuration"
            )
        merged = merge(self._kept, {name: text for name, (_, text) in reading.items()})
        changed = {
            name: (self._kept.get(name), text) for name, text in merged.texts.items() if self._kept.get(name) != text
        }
        if changed or not self._file.exists():
            replace(self._file, json.dumps(dict(merged.texts), indent=1, sort_keys=True) + "\n")
            self._kept = merged.texts
        return Outcome(changed, merged.faults)

    def _agreed(self) -> Reading:
        """A read that equals the one before it, which may be that of the last poll: a steady node reads once."""
        for _ in range(_READS):
            try:
                reading = read_path(self._ssm, self._path)
            except AWS_ERRORS as error:
                raise Unreachable(f"the tunables below {self._path} can't be read: {explain(error)}") from None
            if reading == self._last:
                return reading
            self._last = reading
        raise SourceError(f"the tunables below {self._path} kept changing over {_READS} reads; the old set stays")


def secret(ssm: Any, name: str) -> str:
    """The clear text of a SecureString, for memory only: not for logs, files or arguments. Raises `SourceError`."""
    try:
        found = ssm.get_parameter(Name=name, WithDecryption=True)["Parameter"]
    except AWS_ERRORS as error:
        raise SourceError(f"the secret {name} can't be read: {explain(error)}") from None
    if found["Type"] != "SecureString":
        raise SourceError(
            f"{name} is a {found['Type']}, readable by anyone who may list parameters. hint: delete it, make a new secret, and "
            "store that with `aws ssm put-parameter --type SecureString`"
        )
    return str(found["Value"])


def replace(file: Path, text: str) -> None:
    """Writes `file` so that a reader sees the old content or the new, never a part."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    try:
        with os.fdopen(handle, "w") as unfinished:
            unfinished.write(text)
        # Engine and router run as another user than the agent.
        Path(name).chmod(0o644)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _kept(file: Path) -> Mapping[str, str]:
    """What the file holds; nothing when it is missing or not a set of ours."""
    try:
        found = json.loads(file.read_text())
        Tunables.of(parse_all(found))
    except (OSError, ValueError):
        return {}
    return {str(name): str(text) for name, text in found.items()}
