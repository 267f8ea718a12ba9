"""The nodes of one role: launch template and Auto Scaling group, with every wait derived from one load budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from stacks.config import Capacity, Config
from stacks.disks import IMAGE_GIB, engine_gib
from stacks.identity import Identity
from stacks.machines import Accelerator
from stacks.network import ENGINE_PORT
from stacks.userdata import group_name, node, user_data

# Over the budget: the agent's last words, Auto Scaling's own delays.
_BUFFER_S = 600
# A node that drains asks for this long again every minute (runtime/drain.py); one that can't, is gone after it.
# Auto Scaling lets it ask for a hundred times as long in all, far above the longest node_drain_timeout.
_TERMINATION_S = 600
# CloudFormation refuses the stack beyond it: "PauseTime ... must be no greater than PT3600S".
_LONGEST_PAUSE_S = 3600
_AT_ONCE = 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where nodes go. `interfaces` carry the security groups: EC2 refuses them beside a template's own."""

    subnets: Sequence[str]
    interfaces: Sequence[ec2.CfnLaunchTemplate.NetworkInterfaceProperty]
    capacity: Capacity = field(default_factory=Capacity)
    placement_group: str | None = None


class NodeGroup(Construct):
    def __init__(
        self, scope: Construct, construct_id: str, *, config: Config, role: str, count: int, instance_type: str,
        image: str, place: Place, valkey: str = "", target_groups: Sequence[str] = (), spare: int = 0,
    ) -> None:  # fmt: skip
        """`spare` nodes may be missing least: those that stay while others are replaced."""
        super().__init__(scope, construct_id)
        self._config, self._role, self._place = config, role, place
        self.identity = Identity(self, "Identity", config=config, role=role)
        self.group = self._group(count, target_groups, spare)
        entries = node(
            config, role, build=image, valkey=valkey, stack=cdk.Stack.of(self).stack_name,
            group_resource=cdk.Stack.of(self).get_logical_id(self.group),
        )  # fmt: skip
        self.template = self._template(instance_type, image, user_data(config, entries))
        self.group.launch_template = autoscaling.CfnAutoScalingGroup.LaunchTemplateSpecificationProperty(
            launch_template_id=self.template.ref,
            # A number, not $Latest: a changed template then changes the group, which replaces its nodes.
            version=self.template.attr_latest_version_number,
        )
        self.identity.hold(self.group)

    def _template(self, instance_type: str, image: str, data: str) -> ec2.CfnLaunchTemplate:
        config = self._config
        tags = self._tags(image)
        return ec2.CfnLaunchTemplate(
            self,
            "Template",
            launch_template_data=ec2.CfnLaunchTemplate.LaunchTemplateDataProperty(
                image_id=image,
                instance_type=instance_type,
                user_data=data,
                iam_instance_profile=ec2.CfnLaunchTemplate.IamInstanceProfileProperty(
                    arn=self.identity.profile.attr_arn
                ),
                network_interfaces=list(self._place.interfaces),
                block_device_mappings=[
                    ec2.CfnLaunchTemplate.BlockDeviceMappingProperty(
                        device_name="/dev/sda1",
                        ebs=ec2.CfnLaunchTemplate.EbsProperty(
                            encrypted=True,
                            volume_type="gp3",
                            volume_size=engine_gib(config) if self._role != "router" else IMAGE_GIB[Accelerator.NONE],
                            delete_on_termination=True,
                        ),
                    )
                ],
                metadata_options=ec2.CfnLaunchTemplate.MetadataOptionsProperty(
                    # Nothing on a node runs in a container with a network of its own.
                    http_tokens="required", http_put_response_hop_limit=1, http_endpoint="enabled",
                ),
                monitoring=ec2.CfnLaunchTemplate.MonitoringProperty(enabled=True),
                tag_specifications=[
                    ec2.CfnLaunchTemplate.TagSpecificationProperty(resource_type=kind, tags=tags)
                    for kind in ("instance", "volume", "network-interface")
                ],
                **_capacity(self._place.capacity),
            ),
        )  # fmt: skip

    def _tags(self, image: str) -> list[cdk.CfnTag]:
        """What routers find engines by, and what IAM lets a node change on itself."""
        values = {
            "Name": group_name(self._config, self._role),
            "project": "kv-roundtrip",
            "kv-roundtrip:deployment": self._config.name,
            "kv-roundtrip:role": self._role,
            "kv-roundtrip:build": image,
            "kv-roundtrip:port": str(self._config.router.port if self._role == "router" else ENGINE_PORT),
        }
        return [cdk.CfnTag(key=key, value=value) for key, value in values.items()]

    def _group(self, count: int, target_groups: Sequence[str], spare: int) -> autoscaling.CfnAutoScalingGroup:
        config = self._config
        name = group_name(config, self._role)
        patience = config.load_budget_s + _BUFFER_S
        group = autoscaling.CfnAutoScalingGroup(
            self,
            "Group",
            auto_scaling_group_name=name,
            min_size=str(spare),
            max_size=str(count),
            desired_capacity=str(count),
            vpc_zone_identifier=list(self._place.subnets),
            target_group_arns=list(target_groups) or None,
            # The load balancer takes a bad router out by itself; replacing it is the agent's word, after several failures.
            health_check_type="EC2",
            health_check_grace_period=patience,
            placement_group=self._place.placement_group,
            capacity_reservation_specification=_only_reserved(self._place.capacity),
            lifecycle_hook_specification_list=[
                autoscaling.CfnAutoScalingGroup.LifecycleHookSpecificationProperty(
                    lifecycle_hook_name=f"{name}-launch",
                    lifecycle_transition="autoscaling:EC2_INSTANCE_LAUNCHING",
                    # A node that says nothing is not one.
                    default_result="ABANDON",
                    heartbeat_timeout=patience,
                ),
                autoscaling.CfnAutoScalingGroup.LifecycleHookSpecificationProperty(
                    lifecycle_hook_name=f"{name}-terminate",
                    lifecycle_transition="autoscaling:EC2_INSTANCE_TERMINATING",
                    default_result="CONTINUE",
                    heartbeat_timeout=_TERMINATION_S,
                ),
            ],
            metrics_collection=[
                autoscaling.CfnAutoScalingGroup.MetricsCollectionProperty(granularity="1Minute"),
            ],
            termination_policies=["OldestLaunchTemplate", "OldestInstance"],
            tags=[
                autoscaling.CfnAutoScalingGroup.TagPropertyProperty(
                    key="project", value="kv-roundtrip", propagate_at_launch=True
                )
            ],
        )
        group.cfn_options.creation_policy = cdk.CfnCreationPolicy(
            resource_signal=cdk.CfnResourceSignal(count=count, timeout=_iso(patience))
        )
        group.cfn_options.update_policy = cdk.CfnUpdatePolicy(
            # Old nodes go before new ones come: there is no spare P5en to have both.
            auto_scaling_rolling_update=cdk.CfnAutoScalingRollingUpdate(
                min_instances_in_service=spare,
                max_batch_size=_AT_ONCE,
                pause_time=_iso(min(patience, _LONGEST_PAUSE_S)),
                wait_on_resource_signals=True,
                suspend_processes=["HealthCheck", "ReplaceUnhealthy", "AZRebalance", "AlarmNotification"],
            )
        )
        return group


def _iso(seconds: int) -> str:
    return cdk.Duration.seconds(seconds).to_iso_string()


def _capacity(capacity: Capacity) -> dict[str, Any]:
    """For a block; the group itself is pointed at a reservation, by `_only_reserved`."""
    if capacity.kind != "block":
        return {}
    target = ec2.CfnLaunchTemplate.CapacityReservationTargetProperty(capacity_reservation_id=capacity.id)
    return {
        "capacity_reservation_specification": ec2.CfnLaunchTemplate.CapacityReservationSpecificationProperty(
            capacity_reservation_target=target
        ),
        "instance_market_options": ec2.CfnLaunchTemplate.InstanceMarketOptionsProperty(market_type="capacity-block"),
    }


def _only_reserved(
    capacity: Capacity,
) -> autoscaling.CfnAutoScalingGroup.CapacityReservationSpecificationProperty | None:
    """Without it a group falls back to On-Demand, at On-Demand's price, when the reservation is full."""
    if capacity.kind != "reservation":
        return None
    properties = autoscaling.CfnAutoScalingGroup
    return properties.CapacityReservationSpecificationProperty(
        capacity_reservation_preference="capacity-reservations-only",
        capacity_reservation_target=properties.CapacityReservationTargetProperty(
            capacity_reservation_ids=[capacity.id]
        ),
    )
