"""Prefill and decode nodes: same image, same machine, one subnet, one placement group where AWS allows it."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from stacks.config import Config
from stacks.fleet import NodeGroup, Place
from stacks.interfaces import interfaces
from stacks.network import NetworkStack


class EnginesStack(cdk.Stack):
    def __init__(
        self, scope: Construct, construct_id: str, *, config: Config, network: NetworkStack, image: str,
        env: cdk.Environment,
    ) -> None:  # fmt: skip
        super().__init__(scope, construct_id, env=env, description="KV Roundtrip: prefill and decode nodes")
        group = None
        if config.has_placement_group:
            group = ec2.CfnPlacementGroup(self, "PlacementGroup", strategy="cluster").ref
        place = Place(
            [network.subnets.engine],
            interfaces(config.machine, [network.engine_group.security_group_id]),
            config.capacity,
            group,
        )
        self.prefill = self._nodes(config, "prefill", config.prefill.count, image, place)
        self.decode = self._nodes(config, "decode", config.decode.count, image, place)

    def _nodes(self, config: Config, role: str, count: int, image: str, place: Place) -> NodeGroup:
        return NodeGroup(
            self, role.title(), config=config, role=role, count=count, instance_type=config.instance_type, image=image,
            place=place,
        )  # fmt: skip
