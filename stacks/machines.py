"""What is known of an instance type: the only place for such a fact. Nodes get what they need of it from their user data.

Network cards, accelerators, memory and stores are EC2's own DescribeInstanceTypes data of 2026-12 (as shipped with moto 5.2.5). Prices
are On-Demand in a cheap region, looked up in 2026 and only good for an estimate. Nothing here was launched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Accelerator(StrEnum):
    CUDA = "cuda"
    NEURON = "neuron"
    CPU = "cpu"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Machine:
    """`cards` are network cards. `ranks` is the largest tensor parallel size: GPUs, or a Trainium node's logical cores."""

    type: str
    accelerator: Accelerator
    vcpus: int
    memory_gib: int
    hourly_usd: float | None
    """None where nobody looked it up."""
    quota: str
    """Code of the On-Demand vCPU quota."""
    cards: int = 1
    efa: int = 0
    """EFA interfaces at most; one per card."""
    efa_on_card_0: bool = True
    accelerators: int = 0
    ranks: int = 0
    instance_store: bool = False
    zones: frozenset[str] | None = None
    """Ids of the zones that offer the type; None where it is offered nearly everywhere, or nobody looked."""


_P, _TRN, _G, _STANDARD = "L-417A185B", "L-2C3B7624", "L-DB2E81BA", "L-1216C47A"

_P5EN_ZONES = frozenset(
    [
        "use1-az2",
        "use1-az6",
        "use2-az1",
        "use2-az2",
        "use2-az3",
        "usw1-az3",
        "usw2-az2",
        "usw2-az3",
        "usw2-az4",
        "eun1-az1",
        "eun1-az3",
        "eus2-az1",
        "eus2-az2",
        "apne1-az4",
        "apne2-az1",
        "aps1-az1",
        "aps1-az3",
        "apse3-az2",
        "apse3-az3",
        "mec1-az1",
        "mec1-az3",
    ]
)
_TRN2_ZONES = frozenset(["use2-az1", "use2-az2", "use2-az3", "aps2-az1", "aps2-az2", "aps2-az3"])


def _gpu(
    type: str, vcpus: int, memory_gib: int, hourly_usd: float | None, gpus: int, cards: int, efa: int, quota: str = _P,
    zones: frozenset[str] | None = None, efa_on_card_0: bool = True,
) -> Machine:  # fmt: skip
    return Machine(
        type, Accelerator.CUDA, vcpus, memory_gib, hourly_usd, quota, cards, efa, efa_on_card_0, gpus, gpus, True, zones
    )


def _neuron(
    type: str, vcpus: int, memory_gib: int, hourly_usd: float | None, devices: int, ranks: int, cards: int, efa: int,
    zones: frozenset[str] | None = None,
) -> Machine:  # fmt: skip
    return Machine(
        type, Accelerator.NEURON, vcpus, memory_gib, hourly_usd, _TRN, cards, efa, True, devices, ranks, True, zones
    )


def _cpu(type: str, vcpus: int, memory_gib: int, hourly_usd: float) -> Machine:
    return Machine(type, Accelerator.CPU, vcpus, memory_gib, hourly_usd, _STANDARD, ranks=1)


def _router(type: str, vcpus: int, memory_gib: int, hourly_usd: float) -> Machine:
    return Machine(type, Accelerator.NONE, vcpus, memory_gib, hourly_usd, _STANDARD)


ENGINES: Mapping[str, Machine] = MappingProxyType(
    {
        machine.type: machine
        for machine in (
            _gpu("p5en.48xlarge", 192, 2048, 63.30, 8, 16, 16, zones=_P5EN_ZONES),
            _gpu("p5e.48xlarge", 192, 2048, None, 8, 32, 32),
            _gpu("p5.48xlarge", 192, 2048, 55.04, 8, 32, 32),
            _gpu("p6-b200.48xlarge", 192, 2048, 113.93, 8, 8, 8),
            _gpu("p6-b300.48xlarge", 192, 4096, None, 8, 17, 16, efa_on_card_0=False),
            _gpu("g6e.8xlarge", 32, 256, 4.53, 1, 1, 1, _G),
            _gpu("g6e.12xlarge", 48, 384, 10.49, 4, 1, 1, _G),
            _gpu("g6e.24xlarge", 96, 768, 15.07, 4, 2, 2, _G),
            _gpu("g6e.48xlarge", 192, 1536, 30.13, 8, 4, 4, _G),
            # Logical cores: 8 physical ones a Trainium2 device, joined by two; Trainium1 has two a device.
            _neuron("trn2.48xlarge", 192, 2048, 37.00, 16, 64, 16, 16, _TRN2_ZONES),
            _neuron("trn2.3xlarge", 12, 128, None, 1, 4, 1, 1),
            _neuron("trn1.32xlarge", 128, 512, 21.50, 16, 32, 8, 8),
            _neuron("trn1n.32xlarge", 128, 512, 24.78, 16, 32, 16, 16),
            # None with EFA: NIXL over LIBFABRIC with KV in host memory was seen to hang.
            _cpu("c7i.xlarge", 4, 8, 0.179),
            _cpu("c7i.2xlarge", 8, 16, 0.357),
            _cpu("c7i.4xlarge", 16, 32, 0.714),
            _cpu("m7i.2xlarge", 8, 32, 0.403),
        )
    }
)

ROUTERS: Mapping[str, Machine] = MappingProxyType(
    {
        machine.type: machine
        for machine in (
            _router("t3.small", 2, 2, 0.021),
            _router("t3.medium", 2, 4, 0.042),
            _router("c7i.large", 2, 4, 0.089),
            _router("c7i.xlarge", 4, 8, 0.179),
        )
    }
)
