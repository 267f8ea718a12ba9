"""Which machine builds and tests an engine's image: a small one with the accelerator, that the engines' zone offers.

EC2's own DescribeInstanceTypeOfferings data of 2026-12, as shipped with moto 5.2.5, which a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from stacks.machines import Accelerator

_USUAL: Mapping[Accelerator, str] = MappingProxyType(
    {Accelerator.CUDA: "g6e.xlarge", Accelerator.NEURON: "inf2.xlarge", Accelerator.CPU: "c7i.xlarge"}
)

# Zones that offer the engines and not the usual builder; "" where none of the small ones is offered.
_ELSEWHERE: Mapping[Accelerator, Mapping[str, str]] = MappingProxyType(
    {
        Accelerator.CUDA: {
            "g5.xlarge": "apne2-az3 apse2-az1 apse2-az2 apse3-az1 apse3-az3 eun1-az3 eus2-az1 euw2-az2 euw2-az3 euw3-az1 "
            "sae1-az2 use1-az5",
            "g4dn.xlarge": "aps1-az2 apse2-az3 euw2-az1 sae1-az3 usw1-az1 usw1-az3",
            "": "aps2-az3 apse3-az2 cac1-az4 mec1-az3 use1-az3",
        },
        Accelerator.NEURON: {
            "trn2.3xlarge": "aps2-az1 aps2-az2 aps2-az3 apse4-az3 sae1-az1 sae1-az2",
            "": "aps1-az2 apse2-az2 apse4-az1",
        },
        Accelerator.CPU: {},
    }
)


def builder(accelerator: Accelerator, zone: str) -> str:
    """An instance type; "" where none is known."""
    for type, zones in _ELSEWHERE[accelerator].items():
        if zone in zones.split():
            return type
    return _USUAL[accelerator]
