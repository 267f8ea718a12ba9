"""The network interfaces of a launch template. Pure.

The rule AWS documents now: plain ENA at card 0, device 0; EFA-only at device 1 of card 0 if that card takes EFA; EFA-only at device 0 of
every other card. It takes one private address a node. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html
"""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_ec2 as ec2

from stacks.machines import Machine

Interface = ec2.CfnLaunchTemplate.NetworkInterfaceProperty


def layout(machine: Machine) -> list[tuple[int, int, str]]:
    """(card, device, type) of every interface, the primary one first."""
    if not machine.efa:
        return [(0, 0, "interface")]
    first = [(0, 0, "interface")] + ([(0, 1, "efa-only")] if machine.efa_on_card_0 else [])
    return first + [(card, 0, "efa-only") for card in range(1, machine.cards)]


def interfaces(machine: Machine, groups: Sequence[str]) -> list[Interface]:
    """Subnet and public address are left out: the group has one private subnet, and EC2 gives no public address to several cards."""
    return [
        Interface(
            network_card_index=card,
            device_index=device,
            interface_type=kind,
            groups=list(groups),
            delete_on_termination=True,
            description=f"kv-roundtrip card {card} {kind}",
        )
        for card, device, kind in layout(machine)
    ]
