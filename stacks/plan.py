"""What a deployment takes: machines, quotas, dollars an hour. `scripts/deploy.sh` asks AWS about it before anything is made."""

from __future__ import annotations

from stacks import valkey
from stacks.config import Config
from stacks.disks import engine_gib
from stacks.machines import Machine
from stacks.network import ENDPOINTS

# us-east-1 list prices, 2026, by the hour; only good for an estimate.
_NAT, _BALANCER, _ENDPOINT, _VALKEY_NODE, _KEY = 0.045, 0.0225, 0.01, 0.0256, 0.0014
_GP3_GIB_HOUR = 0.08 / 730


def plan(config: Config, stacks: list[str]) -> dict[str, object]:
    machines = [
        _machine(config.machine, "prefill", config.prefill.count),
        _machine(config.machine, "decode", config.decode.count),
        _machine(config.router_machine, "router", config.router.count),
    ]
    return {
        "name": config.name,
        "region": config.region,
        "zone_id": config.engine_zone,
        "machines": machines,
        "other_hourly_usd": round(_other(config), 4),
        "images": {"engine": config.images.engine or "", "router": config.images.router or ""},
        "capacity": {"kind": config.capacity.kind, "id": config.capacity.id, "ends_at": config.capacity.ends_at},
        "stacks": stacks,
    }


def _machine(machine: Machine, role: str, count: int) -> dict[str, object]:
    return {
        "role": role,
        "type": machine.type,
        "count": count,
        "vcpus": machine.vcpus,
        "quota_code": machine.quota,
        "hourly_usd": machine.hourly_usd,
    }


def _other(config: Config) -> float:
    network = 0.0
    if not config.network.vpc_id:
        network = _NAT + (len(ENDPOINTS) * _ENDPOINT if config.network.interface_endpoints else 0)
    disks = (config.prefill.count + config.decode.count) * engine_gib(config) * _GP3_GIB_HOUR
    store = valkey.NODES * _VALKEY_NODE if config.router.count > 1 else 0
    return network + disks + store + _BALANCER + _KEY
