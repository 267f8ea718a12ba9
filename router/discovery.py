"""Where the engines are: a fixed list, a file, or EC2 tags, behind one interface; faults of a source change nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from router.upstream import address

logger = logging.getLogger("router")

PREFILL, DECODE = "prefill", "decode"

_FILE_INTERVAL = 1.0
# DescribeInstances shares its rate with everything else in the account; a node takes minutes to come and to go.
_EC2_INTERVAL = 10.0
_EC2_PAGE = 100
# A router that is to leave waits for its call, with what boto3 repeats of it.
_EC2_CONNECT_SECONDS, _EC2_READ_SECONDS = 3, 5

_NOT_ALLOWED = "UnauthorizedOperation"

_TAG = "kv-roundtrip:"
_SERVING = ("", "serving")
"""Values of the state tag with which an engine gets new turns; any other, known or not, is on its way out."""


@dataclass(frozen=True, slots=True)
class Engine:
    role: str
    url: str
    build: str = ""
    """Image id; only engines of one build are paired. "" is a build too."""
    draining: bool = False
    """Gets no new turns."""


Engines = tuple[Engine, ...]


class SourceFault(Exception):
    """The source can't be read, or holds nonsense. Each `kind` is logged once until the source is well again."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Source(Protocol):
    interval: float | None
    """Seconds between two reads; None when one is enough."""

    async def read(self) -> Engines:
        """All engines there are now, each role and address once. Raises `SourceFault`."""


async def follow(source: Source, accept: Callable[[Engines], None]) -> None:
    """Hands over what `source` says, for as long as it may change. A fault hands over nothing: the last engines stay."""
    told: set[str] = set()
    while True:
        try:
            engines = await source.read()
        except Exception as error:
            kind = error.kind if isinstance(error, SourceFault) else type(error).__name__
            if kind not in told:
                told.add(kind)
                fields = {"reason": str(error)}
                logger.error("engines can't be read, the known ones stay", extra={"fields": fields})
        else:
            if told:
                logger.info("engines are read again")
                told.clear()
            accept(engines)
        if source.interval is None:
            return
        await asyncio.sleep(source.interval)


class Static:
    """The engines of the command line."""

    interval: float | None = None

    def __init__(self, prefill: Iterable[str], decode: Iterable[str]) -> None:
        """Raises `SourceFault`."""
        self._engines = _checked((*(Engine(PREFILL, url) for url in prefill), *(Engine(DECODE, url) for url in decode)))

    async def read(self) -> Engines:
        return self._engines


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    build: str = ""
    draining: bool = False

    def engine(self, role: str) -> Engine:
        return Engine(role, self.url, self.build, self.draining)


class _Listing(msgspec.Struct, forbid_unknown_fields=True):
    prefill: list[_Entry]
    decode: list[_Entry]


class EnginesFile:
    """`{"prefill": [{"url": "http://10.0.0.1:8000", "build": "ami-1"}], "decode": [...]}`, read again when it changes."""

    def __init__(self, path: Path, interval: float = _FILE_INTERVAL) -> None:
        self.interval: float | None = interval
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._known: Engines | SourceFault = ()

    async def read(self) -> Engines:
        try:
            stat = self._path.stat()
            seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if seen != self._seen:
                self._known = self._parsed(self._path.read_bytes())
                self._seen = seen
        except OSError as error:
            raise SourceFault(
                f"file {error.strerror}",
                f"{self._path}: {error.strerror}. hint: write the file, or name it in --engines-file",
            ) from None
        if isinstance(self._known, SourceFault):
            raise self._known
        return self._known

    def _parsed(self, raw: bytes) -> Engines | SourceFault:
        try:
            listing = msgspec.json.decode(raw, type=_Listing)
            engines = [entry.engine(PREFILL) for entry in listing.prefill]
            return _checked((*engines, *(entry.engine(DECODE) for entry in listing.decode)))
        except (msgspec.DecodeError, SourceFault, ValueError, RecursionError) as error:
            return SourceFault(
                "file content",
                f'{self._path}: {error}. hint: {{"prefill": [{{"url": "http://HOST:PORT", "build": "ID"}}], "decode": [...]}}',
            )


class Ec2:
    """Running instances with the tags of a deployment. Region, credentials and AWS_ENDPOINT_URL are boto3's to find."""

    def __init__(
        self, deployment: str, region: str | None, interval: float = _EC2_INTERVAL, page: int = _EC2_PAGE
    ) -> None:
        """`page`: instances asked for at a time. Raises `SourceFault`; calls nobody yet."""
        self.interval: float | None = interval
        self._page = page
        self._deployment = deployment
        self._odd: dict[str, str] = {}
        """Why an instance is no engine, by its id."""
        self._client = _ec2_client(region)

    async def read(self) -> Engines:
        # boto3 waits and retries in its own way, which must not hold up any turn.
        instances = await asyncio.to_thread(self._describe)
        found, odd = {}, {}
        for instance in instances:
            engine = _engine(instance)
            if isinstance(engine, Engine):
                found[engine.role, engine.url] = engine
            else:
                odd[instance["InstanceId"]] = engine
        for name, reason in odd.items() - self._odd.items():
            logger.warning("an instance is no engine", extra={"fields": {"instance": name, "reason": reason}})
        self._odd = odd
        return tuple(found[place] for place in sorted(found))

    def _describe(self) -> list[Mapping[str, Any]]:
        from botocore.exceptions import BotoCoreError, ClientError

        filters = {f"tag:{_TAG}deployment": [self._deployment], "instance-state-name": ["running"]}
        filters[f"tag:{_TAG}role"] = [PREFILL, DECODE]
        try:
            pages = self._client.get_paginator("describe_instances").paginate(
                Filters=[{"Name": name, "Values": values} for name, values in filters.items()],
                PaginationConfig={"PageSize": self._page},
            )
            return [instance for page in pages for group in page["Reservations"] for instance in group["Instances"]]
        except ClientError as error:
            code = error.response["Error"]["Code"]
            hint = ". hint: the router's role is to allow ec2:DescribeInstances" if code == _NOT_ALLOWED else ""
            raise SourceFault(f"EC2 {code}", f"{error}{hint}") from None
        except BotoCoreError as error:
            raise SourceFault(f"EC2 {type(error).__name__}", str(error)) from None


def _engine(instance: Mapping[str, Any]) -> Engine | str:
    """An engine, or why the tags and the address of `instance` make none: it must not hold up the others."""
    tags = {tag["Key"].removeprefix(_TAG): tag["Value"] for tag in instance["Tags"] if tag["Key"].startswith(_TAG)}
    host, port = instance.get("PrivateIpAddress", ""), tags.get("port", "")
    if not host or not port:
        return f"private address {host!r}, tag {_TAG}port {port!r}. hint: the tag is to hold the port"
    url = f"http://{host}:{port}"
    try:
        address(url)
    except ValueError as error:
        return str(error)
    return Engine(tags["role"], url, tags.get("build", ""), tags.get("state", "") not in _SERVING)


def _ec2_client(region: str | None) -> Any:
    try:
        # Here, because only a router on AWS needs it.
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError:
        raise SourceFault("boto3", "--engines-ec2 needs boto3. hint: pip install 'kv-roundtrip[node]'") from None
    config = Config(connect_timeout=_EC2_CONNECT_SECONDS, read_timeout=_EC2_READ_SECONDS, retries={"mode": "standard"})
    try:
        return boto3.client("ec2", region_name=region, config=config)
    except (BotoCoreError, ValueError) as error:
        raise SourceFault("EC2 client", f"EC2 can't be asked: {error} hint: --region REGION or AWS_REGION") from None


def _checked(engines: Engines) -> Engines:
    """`engines`. Raises `SourceFault` for an address that is none, or one that stands there twice."""
    places = set()
    for engine in engines:
        try:
            address(engine.url)
        except ValueError as error:
            raise SourceFault("address", str(error)) from None
        place = (engine.role, engine.url)
        if place in places:
            raise SourceFault("address", f"{engine.role} {engine.url} is listed twice. hint: list it once")
        places.add(place)
    return engines
