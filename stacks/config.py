"""The one configuration of a deployment: a profile of cdk.json with what the command line changes, checked as a whole.

cdk deploy --all -c profile=p5en -c decode.count=2 -c tunables.handle_ttl=60
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stacks.machines import ENGINES, ROUTERS, Machine

Ami = Annotated[str, Field(pattern=r"^ami-[0-9a-f]{8,17}$")]
ZoneId = Annotated[str, Field(pattern=r"^[a-z]+[0-9]-az[0-9]$")]
SubnetId = Annotated[str, Field(pattern=r"^subnet-[0-9a-f]{8,17}$")]
Cidr = Annotated[str, Field(pattern=r"^[0-9.]{7,15}/([0-9]|[12][0-9]|3[0-2])$")]


class ConfigError(ValueError):
    """All that is wrong with a configuration, a line a fault: field, reason, fix."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Fault:
    field: str
    reason: str
    hint: str

    def __str__(self) -> str:
        return f"config: {self.field}: {self.reason}. hint: {self.hint}"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Role(_Part):
    count: int = Field(default=1, ge=1, le=64)


class Router(_Part):
    count: int = Field(default=1, ge=1, le=16)
    instance_type: str = "t3.small"
    port: int = Field(default=8080, ge=1024, le=65535)


class Capacity(_Part):
    kind: Literal["on-demand", "reservation", "block"] = "on-demand"
    id: str = Field(default="", pattern=r"^(cr-[0-9a-f]{8,17})?$")
    ends_at: str = Field(default="", pattern=r"^(20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]Z)?$")
    """End of a Capacity Block, UTC."""
    placement_group: bool | None = None
    """None: where EFA and the kind of capacity allow it."""


class Network(_Part):
    """A new VPC unless `vpc_id` names one; then all its subnets have to be given."""

    cidr: Cidr = "10.40.0.0/16"
    interface_endpoints: bool = True
    vpc_id: str = Field(default="", pattern=r"^(vpc-[0-9a-f]{8,17})?$")
    engine_subnet_ids: tuple[SubnetId, ...] = ()
    router_subnet_ids: tuple[SubnetId, ...] = ()
    edge_subnet_ids: tuple[SubnetId, ...] = ()


class Edge(_Part):
    """What clients reach. Not public by default: the router asks no key."""

    public: bool = False
    allowed_cidrs: tuple[Cidr, ...] = ()
    """Clients; empty: the VPC itself."""
    certificate_arn: str = Field(
        default="", pattern=r"^(arn:aws[a-z-]*:acm:[a-z0-9-]+:[0-9]{12}:certificate/[0-9a-f-]+)?$"
    )
    domain: str = Field(default="", pattern=r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+)?$")
    hosted_zone_id: str = Field(default="", pattern=r"^(Z[A-Z0-9]{8,31})?$")
    waf: bool = False
    access_log_bucket: str = Field(default="", pattern=r"^([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])?$")
    longest_stream_s: int = Field(default=3600, ge=60, le=3600)
    longest_silence_s: int = Field(default=1200, ge=60, le=4000)
    """No byte for so long ends a stream; the router's keep-alive is above it."""


class Model(_Part):
    name: str = Field(default="Qwen/Qwen3-32B", pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")
    served_name: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9._/-]{0,127})?$")
    """"" for `name`."""
    weights: str = Field(
        default="hub", pattern=r"^(hub|s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[A-Za-z0-9!_.*'()/-]{1,256})$"
    )
    hub_token_parameter: str = Field(default="", pattern=r"^(/[A-Za-z0-9_.-]+)*$", max_length=512)
    """Name of a SecureString that holds the hub's token; the token itself is never in a template."""
    max_model_len: int = Field(default=0, ge=0, le=10_000_000)


class Images(_Part):
    """Ids of images that were built and are pinned on purpose; without them only network, images and parameters are made."""

    engine: Ami | None = None
    router: Ami | None = None
    engine_base: str = Field(default="", pattern=r"^(ami-[0-9a-f]{8,17}|/[A-Za-z0-9_./-]+)?$")
    """Parent of the engine image: an AMI, or a public parameter; "" for the accelerator's usual one."""
    builder: str = Field(default="", pattern=r"^([a-z0-9-]+\.[a-z0-9-]+)?$")
    """Instance type that builds and tests it; "" for a small one with the accelerator that the engines' zone offers."""


class Config(_Part):
    name: str = Field(default="kv-roundtrip", pattern=r"^[a-z][a-z0-9-]{1,15}$")
    region: str = Field(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]$")
    engine_zone: ZoneId
    edge_zones: tuple[ZoneId, ...]
    """Zone ids: names differ from account to account."""
    instance_type: str
    prefill: Role = Role()
    decode: Role = Role()
    router: Router = Router()
    tensor_parallel: int = Field(default=1, ge=1, le=256)
    model: Model = Model()
    capacity: Capacity = Capacity()
    network: Network = Network()
    edge: Edge = Edge()
    images: Images = Images()
    alarm_email: str = Field(default="", pattern=r"^([^@\s]+@[^@\s]+\.[^@\s]+)?$")
    load_budget_minutes: int = Field(default=40, ge=3, le=60)
    """From a node's boot to its first answer; grace, hooks and signals all follow from it. CloudFormation waits for a replaced
    node for an hour at most, so beyond 50 a roll-out has less than the ten minutes of slack that the first start has."""
    root_volume_gib: int = Field(default=100, ge=20, le=16_384)
    """Of an engine's node, at least; its image may need more."""
    log_retention_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 180, 365] = 30
    tunables: Mapping[str, str] = {}
    """First values of tunables, where they differ from the schema's."""

    @property
    def machine(self) -> Machine:
        return ENGINES[self.instance_type]

    @property
    def router_machine(self) -> Machine:
        return ROUTERS[self.router.instance_type]

    @property
    def has_placement_group(self) -> bool:
        wanted = self.capacity.placement_group
        return bool(self.machine.efa and self.capacity.kind != "block") if wanted is None else wanted

    @property
    def served_name(self) -> str:
        return self.model.served_name or self.model.name

    @property
    def load_budget_s(self) -> int:
        return self.load_budget_minutes * 60

    @property
    def is_pinned(self) -> bool:
        return bool(self.images.engine and self.images.router)


CrossCheck = Callable[[Config], list[Fault]]


def load(given: Mapping[str, Any], fallback: Mapping[str, Any], cross_check: CrossCheck) -> Config:
    """Raises `ConfigError` with every fault: of single fields, and of fields that are each right but do not fit together.

    A field that is wrong stands aside for `fallback`'s while the others are checked against each other.
    """
    try:
        config = Config.model_validate(given)
        faults: list[Fault] = []
    except ValidationError as error:
        faults = [_fault(detail) for detail in error.errors()]
        wrong = {str(detail["loc"][0]) for detail in error.errors() if detail["loc"]}
        rest = {name: value for name, value in given.items() if name not in wrong}
        try:
            config = Config.model_validate({**{k: v for k, v in fallback.items() if k in wrong}, **rest})
        except ValidationError:
            raise ConfigError(faults) from None
    faults += [fault for fault in cross_check(config) if fault not in faults]
    if faults:
        raise ConfigError(faults)
    return config


def overlaid(profile: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`profile` with `overrides`, whose names are dotted paths, such as `decode.count`."""
    merged: dict[str, Any] = json.loads(json.dumps(profile))
    for path, value in overrides.items():
        *parents, last = path.split(".")
        place = merged
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = _decoded(value)
    return merged


def paths(model: type[BaseModel] = Config, prefix: str = "") -> list[str]:
    """Every dotted name that can be set."""
    found = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found += paths(kind, f"{prefix}{name}.")
        else:
            found.append(prefix + name)
    return found


def _decoded(value: Any) -> Any:
    """The CDK's command line gives text; lists and flags are JSON in it."""
    if isinstance(value, str) and re.match(r"^(\[|true$|false$|null$)", value):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _fault(detail: Any) -> Fault:
    field = ".".join(str(part) for part in detail["loc"]) or "the configuration"
    kind, seen, context = detail["type"], detail.get("input"), detail.get("ctx", {})
    if kind == "missing":
        return Fault(field, "is missing", "set it in the profile in cdk.json")
    if kind == "extra_forbidden":
        return Fault(field, "is not a setting", f"known are {', '.join(paths())}")
    if kind == "string_pattern_mismatch":
        return Fault(field, f"is {seen!r}", f"set a text that matches {context['pattern']}")
    return Fault(field, f"is {seen!r}", detail["msg"][0].lower() + detail["msg"][1:])
