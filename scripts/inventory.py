"""What exists in an account and region, service by service, as names: to compare before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Client = Any
"""A boto3 client, or what stands for one; boto3 has no types."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One list call: where its answer holds the items, and what names an item."""

    service: str
    """CloudFormation's name of the service, the middle of `AWS::EC2::VPC`."""
    client: str
    operation: str
    items: str
    name: str
    alive: Callable[[Mapping[str, Any]], bool] = lambda item: True
    arguments: Mapping[str, Any] | None = None

    def read(self, client: Client) -> Iterator[str]:
        """Every page. Raises what boto3 raises."""
        arguments = dict(self.arguments or {})
        if client.can_paginate(self.operation):
            pages = client.get_paginator(self.operation).paginate(**arguments)
        else:
            pages = [getattr(client, self.operation)(**arguments)]
        for page in pages:
            for item in page.get(self.items, []):
                if isinstance(item, str):
                    yield item
                elif self.alive(item):
                    yield str(item[self.name])


def _alive(key: str, *gone: str) -> Callable[[Mapping[str, Any]], bool]:
    """AWS lists what was ended for a while."""
    return lambda item: item.get(key) not in gone


def _running(item: Mapping[str, Any]) -> bool:
    return any(one["State"]["Name"] not in ("terminated", "shutting-down") for one in item["Instances"])


def _ec2(
    operation: str, items: str, name: str, alive: Callable[[Mapping[str, Any]], bool] = lambda item: True
) -> Listing:
    return Listing("EC2", "ec2", operation, items, name, alive)


LISTINGS = (
    _ec2("describe_vpcs", "Vpcs", "VpcId"),
    _ec2("describe_subnets", "Subnets", "SubnetId"),
    _ec2("describe_route_tables", "RouteTables", "RouteTableId"),
    _ec2("describe_internet_gateways", "InternetGateways", "InternetGatewayId"),
    _ec2("describe_nat_gateways", "NatGateways", "NatGatewayId", _alive("State", "deleted", "deleting")),
    _ec2("describe_addresses", "Addresses", "PublicIp"),
    _ec2("describe_security_groups", "SecurityGroups", "GroupId"),
    _ec2("describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId"),
    _ec2("describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId", _alive("State", "deleted", "deleting")),
    _ec2("describe_flow_logs", "FlowLogs", "FlowLogId"),
    _ec2("describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"),
    _ec2("describe_placement_groups", "PlacementGroups", "GroupName", _alive("State", "deleted", "deleting")),
    _ec2("describe_instances", "Reservations", "ReservationId", _running),
    _ec2("describe_volumes", "Volumes", "VolumeId"),
    Listing("AutoScaling", "autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups", "AutoScalingGroupName"),
    Listing("AutoScaling", "autoscaling", "describe_policies", "ScalingPolicies", "PolicyARN"),
    Listing("ElasticLoadBalancingV2", "elbv2", "describe_load_balancers", "LoadBalancers", "LoadBalancerArn"),
    Listing("ElasticLoadBalancingV2", "elbv2", "describe_target_groups", "TargetGroups", "TargetGroupArn"),
    Listing("WAFv2", "wafv2", "list_web_acls", "WebACLs", "ARN", arguments={"Scope": "REGIONAL"}),
    Listing("ElastiCache", "elasticache", "describe_replication_groups", "ReplicationGroups", "ReplicationGroupId"),
    Listing("ElastiCache", "elasticache", "describe_cache_subnet_groups", "CacheSubnetGroups", "CacheSubnetGroupName"),
    Listing("SSM", "ssm", "describe_parameters", "Parameters", "Name"),
    Listing("CloudWatch", "cloudwatch", "describe_alarms", "MetricAlarms", "AlarmName"),
    Listing("CloudWatch", "cloudwatch", "describe_alarms", "CompositeAlarms", "AlarmName"),
    Listing("CloudWatch", "cloudwatch", "list_dashboards", "DashboardEntries", "DashboardName"),
    Listing("SNS", "sns", "list_topics", "Topics", "TopicArn"),
    Listing("SNS", "sns", "list_subscriptions", "Subscriptions", "SubscriptionArn"),
    Listing("Logs", "logs", "describe_log_groups", "logGroups", "logGroupName"),
    Listing("Logs", "logs", "describe_metric_filters", "metricFilters", "filterName"),
    Listing("Events", "events", "list_rules", "Rules", "Arn"),
    Listing("IAM", "iam", "list_roles", "Roles", "RoleName"),
    Listing("IAM", "iam", "list_instance_profiles", "InstanceProfiles", "InstanceProfileName"),
    Listing("IAM", "iam", "list_policies", "Policies", "Arn", arguments={"Scope": "Local"}),
    Listing("S3", "s3", "list_buckets", "Buckets", "Name"),
    Listing("ECR", "ecr", "describe_repositories", "repositories", "repositoryName"),
    Listing("SecretsManager", "secretsmanager", "list_secrets", "SecretList", "ARN"),
    Listing("KMS", "kms", "list_aliases", "Aliases", "AliasName"),
    Listing("Lambda", "lambda", "list_functions", "Functions", "FunctionName"),
    Listing(
        "CloudFormation",
        "cloudformation",
        "describe_stacks",
        "Stacks",
        "StackName",
        _alive("StackStatus", "DELETE_COMPLETE"),
    ),
    Listing("CloudFormation", "cloudformation", "list_exports", "Exports", "Name"),
)

SERVICES = frozenset(listing.service for listing in LISTINGS)


def inventory(client: Callable[[str], Client], listings: Iterable[Listing] = LISTINGS) -> frozenset[str]:
    """Everything that `listings` find, as `service operation name`."""
    return frozenset(
        f"{listing.service} {listing.operation.split('_', 1)[1]} {name}"
        for listing in listings
        for name in listing.read(client(listing.client))
    )
