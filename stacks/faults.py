"""Combinations that each field allows and AWS does not. Pure; each check names what to change."""

from __future__ import annotations

import ipaddress
import re

from runtime.parameters import ParameterError, Tunables, parse_all
from stacks.builders import builder
from stacks.config import Config, Fault
from stacks.machines import ENGINES, ROUTERS

# vLLM's attention on a CPU takes no other block sizes; a GPU's multiples of 16.
_BLOCK_MULTIPLE = 32


def faults(config: Config) -> list[Fault]:
    """All of them; checks that need the machine wait for a known one."""
    found = [
        *_name(config),
        *_types(config),
        *_zones(config),
        *_capacity(config),
        *_network(config),
        *_edge(config),
        *_tunables(config),
    ]
    if config.instance_type in ENGINES:
        found += [*_offered(config), *_parallel(config), *_placement(config), *_weights(config), *_builder(config)]
    return found


def _name(config: Config) -> list[Fault]:
    if not config.name.startswith(("aws", "ssm")):
        return []
    hint = "Parameter Store keeps such paths for AWS; choose another name"
    return [Fault("name", f"{config.name!r} begins with {config.name[:3]}", hint)]


def _builder(config: Config) -> list[Fault]:
    if config.images.builder or builder(config.machine.accelerator, config.engine_zone):
        return []
    reason = f"is empty, and {config.engine_zone} offers no small machine known to build this image"
    return [Fault("images.builder", reason, f"set a type that it offers, such as {config.instance_type}")]


def _types(config: Config) -> list[Fault]:
    found = []
    if config.instance_type not in ENGINES:
        found.append(_unknown("instance_type", config.instance_type, list(ENGINES)))
    if config.router.instance_type not in ROUTERS:
        found.append(_unknown("router.instance_type", config.router.instance_type, list(ROUTERS)))
    return found


def _unknown(field: str, value: str, known: list[str]) -> Fault:
    return Fault(
        field,
        f"{value} has no entry in stacks/machines.py",
        f"choose one of {', '.join(known)}, or add its facts there",
    )


def _zones(config: Config) -> list[Fault]:
    found = []
    if len(set(config.edge_zones)) != 2 or len(config.edge_zones) != 2:
        found.append(
            Fault(
                "edge_zones",
                f"has {len(set(config.edge_zones))} zones; the load balancer takes two",
                "name two zone ids",
            )
        )
    if config.engine_zone not in config.edge_zones:
        found.append(
            Fault(
                "engine_zone",
                f"{config.engine_zone} is not one of edge_zones",
                "routers next to the engines save a zone crossing; name it in edge_zones too",
            )
        )
    strangers = {zone.split("-")[0] for zone in (config.engine_zone, *config.edge_zones)}
    if len(strangers) > 1:
        found.append(
            Fault(
                "edge_zones",
                f"zones of several regions: {', '.join(sorted(strangers))}",
                f"take zone ids of {config.region} only",
            )
        )
    elif strangers != {zone_prefix(config.region)}:
        found.append(
            Fault(
                "region",
                f"{config.region} has no zone {config.engine_zone}",
                f"its zone ids begin with {zone_prefix(config.region)}-; set the region of the zones, or other zones",
            )
        )
    return found


def zone_prefix(region: str) -> str:
    """What a region's zone ids begin with: use2 of us-east-2, apse3 of ap-southeast-3."""
    area, *middle, number = region.split("-")
    short = "".join(re.sub("(north|south|east|west|central|gov)", lambda found: found[0][0], part) for part in middle)
    return area + short + number


def _capacity(config: Config) -> list[Fault]:
    capacity, found = config.capacity, []
    if capacity.kind != "on-demand" and not capacity.id:
        found.append(
            Fault("capacity.id", f"is missing for a {capacity.kind}", "set the id, cr-..., of the reservation")
        )
    if capacity.kind == "on-demand" and capacity.id:
        found.append(
            Fault(
                "capacity.kind",
                "is on-demand, yet capacity.id names a reservation",
                "set reservation or block, or clear the id",
            )
        )
    if capacity.kind == "block" and not capacity.ends_at:
        found.append(
            Fault(
                "capacity.ends_at",
                "is missing; nodes could not drain before AWS takes them",
                "set the block's end, like 2027-03-01T11:30Z",
            )
        )
    if capacity.kind != "block" and capacity.ends_at:
        found.append(
            Fault(
                "capacity.ends_at",
                f"only a block ends, this is {capacity.kind}",
                "clear it, or set capacity.kind=block",
            )
        )
    if capacity.kind == "block" and capacity.placement_group:
        found.append(
            Fault(
                "capacity.placement_group",
                "a Capacity Block can't be launched into a placement group",
                "clear it; a block's machines are close to each other already",
            )
        )
    return found


def _placement(config: Config) -> list[Fault]:
    if config.capacity.placement_group and not config.machine.efa:
        return [
            Fault(
                "capacity.placement_group", f"{config.instance_type} has no EFA and gains nothing from one", "clear it"
            )
        ]
    return []


def _offered(config: Config) -> list[Fault]:
    zones = config.machine.zones
    if zones is None or config.engine_zone in zones:
        return []
    near = sorted(zone for zone in zones if zone.split("-")[0] == config.engine_zone.split("-")[0])
    where = f"take {' or '.join(near)}" if near else f"take another region: {', '.join(sorted(zones))}"
    return [Fault("engine_zone", f"{config.engine_zone} does not offer {config.instance_type}", where)]


def _parallel(config: Config) -> list[Fault]:
    machine, size = config.machine, config.tensor_parallel
    if size > machine.ranks:
        return [
            Fault(
                "tensor_parallel",
                f"{size} is more than the {machine.ranks} of one {machine.type}; an engine does not span nodes",
                f"set {machine.ranks} or less",
            )
        ]
    if machine.ranks % size:
        return [Fault("tensor_parallel", f"{size} does not divide {machine.ranks} of {machine.type}", "set a divisor")]
    if size < machine.ranks:
        return [
            Fault(
                "tensor_parallel",
                f"{size} leaves {machine.ranks - size} of {machine.ranks} of {machine.type} idle; a node runs one engine",
                f"set {machine.ranks}, or take a smaller instance type",
            )
        ]
    return []


def _weights(config: Config) -> list[Fault]:
    if config.model.weights != "hub" and config.model.hub_token_parameter:
        return [
            Fault(
                "model.hub_token_parameter",
                "is set, yet the weights come from S3",
                "clear it: nodes need no token then",
            )
        ]
    return []


def _network(config: Config) -> list[Fault]:
    network, found = config.network, []
    given = {
        "engine_subnet_ids": network.engine_subnet_ids,
        "router_subnet_ids": network.router_subnet_ids,
        "edge_subnet_ids": network.edge_subnet_ids,
    }
    if not network.vpc_id:
        return [
            Fault(f"network.{field}", "is set, but a new VPC makes its own subnets", "set network.vpc_id, or clear it")
            for field, subnets in given.items()
            if subnets
        ] + _size(network.cidr)
    if len(network.engine_subnet_ids) != 1:
        found.append(
            Fault(
                "network.engine_subnet_ids",
                f"has {len(network.engine_subnet_ids)} subnets; EFA stays within one, and all engines with it",
                "name the one private subnet in engine_zone",
            )
        )
    for field in ("router_subnet_ids", "edge_subnet_ids"):
        if len(set(given[field])) != 2 or len(given[field]) != 2:
            found.append(
                Fault(
                    f"network.{field}", f"has {len(set(given[field]))} subnets", "name two, in the order of edge_zones"
                )
            )
    if not config.edge.allowed_cidrs and not config.edge.public and "cidr" not in network.model_fields_set:
        reason = "is not set, and the load balancer lets in that network alone"
        hint = "set it to the CIDR of network.vpc_id, or name the clients in edge.allowed_cidrs"
        found.append(Fault("network.cidr", reason, hint))
    return found


def _size(cidr: str) -> list[Fault]:
    try:
        network = ipaddress.ip_network(cidr)
    except ValueError as error:
        return [Fault("network.cidr", str(error), "set one like 10.40.0.0/16")]
    if not 16 <= network.prefixlen <= 20 or not network.is_private:
        return [Fault("network.cidr", f"{cidr} is not a private network of /16 to /20", "set one like 10.40.0.0/16")]
    return []


def _edge(config: Config) -> list[Fault]:
    edge, found = config.edge, []
    if edge.public and not edge.certificate_arn and (not edge.allowed_cidrs or "0.0.0.0/0" in edge.allowed_cidrs):
        found.append(
            Fault(
                "edge.certificate_arn",
                "is missing for an endpoint that anyone reaches: prompts would travel in clear",
                "set a certificate, or edge.allowed_cidrs, or edge.public=false",
            )
        )
    if edge.public and not edge.allowed_cidrs:
        found.append(
            Fault(
                "edge.allowed_cidrs",
                "is empty for a public endpoint; the router asks no key",
                "name the networks of your clients",
            )
        )
    if edge.domain and not edge.certificate_arn:
        found.append(Fault("edge.domain", "is set without edge.certificate_arn", "set the certificate of that name"))
    if edge.domain and not edge.hosted_zone_id:
        found.append(
            Fault(
                "edge.domain",
                "is set without edge.hosted_zone_id, which would get its record",
                "set the zone, or clear the domain and make the record yourself",
            )
        )
    if edge.certificate_arn and edge.certificate_arn.split(":")[3] != config.region:
        found.append(
            Fault(
                "edge.certificate_arn",
                f"is of {edge.certificate_arn.split(':')[3]}, a load balancer takes one of its own region",
                f"set one of {config.region}",
            )
        )
    for cidr in edge.allowed_cidrs:
        try:
            ipaddress.ip_network(cidr)
        except ValueError as error:
            found.append(Fault("edge.allowed_cidrs", str(error), "set networks like 203.0.113.0/24"))
    return found


def _tunables(config: Config) -> list[Fault]:
    try:
        unknown = [name for name in config.tunables if name not in Tunables.of().values]
        found = [Fault(f"tunables.{name}", "is not a tunable", "see docs/tune.md") for name in unknown]
        size = Tunables.of(parse_all(config.tunables)).integer("block_size")
        if size % _BLOCK_MULTIPLE:
            hint = f"set a multiple of {_BLOCK_MULTIPLE}"
            found.append(Fault("tunables.block_size", f"{size} is a size that no engine of ours takes", hint))
    except ParameterError as error:
        reason, _, hint = str(error).partition(". hint: ")
        found.append(Fault("tunables", reason, hint or "see docs/tune.md"))
    too_long = [name for name, text in config.tunables.items() if not 1 <= len(text) <= 4096]
    return found + [
        Fault(f"tunables.{name}", "Parameter Store takes 1 to 4,096 characters", "shorten it") for name in too_long
    ]
