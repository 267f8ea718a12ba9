"""Auto Scaling groups with their hooks, changed in place, and load balancers with their attributes."""

from __future__ import annotations

from typing import Any

from tests.emulator.api import Properties
from tests.emulator.kinds import Kind, Made, simple

_LISTS = {"LifecycleHookSpecificationList", "NotificationConfigurations", "MetricsCollection", "VPCZoneIdentifier"}


def _group(made: Made, operation: str, asked: Properties) -> dict[str, Any]:
    """The arguments of `operation`; some properties have an operation of their own, and the subnets are one text there."""
    renamed = {name: value for name, value in asked.items() if name not in _LISTS}
    if "Cooldown" in renamed:
        renamed["DefaultCooldown"] = renamed.pop("Cooldown")
    if "VPCZoneIdentifier" in asked:
        renamed["VPCZoneIdentifier"] = ",".join(asked["VPCZoneIdentifier"])
    known = made.api.takes(made.region, "autoscaling", operation, renamed)
    lost = renamed.keys() - known.keys() - {"Tags"}
    if lost:
        raise ValueError(f"AWS::AutoScaling::AutoScalingGroup has no property {', '.join(sorted(lost))}")
    return {**known, "AutoScalingGroupName": made.id}


def _create_group(made: Made) -> None:
    asked = _group(made, "create_auto_scaling_group", made.properties)
    asked["Tags"] = _tags(made, made.properties)
    made.call("autoscaling", "create_auto_scaling_group", **asked)
    _put_hooks(made, made.properties)


def _tags(made: Made, asked: Properties) -> list[dict[str, Any]]:
    return [{**tag, "ResourceId": made.id, "ResourceType": "auto-scaling-group"} for tag in asked.get("Tags", [])]


def _put_hooks(made: Made, asked: Properties) -> None:
    for hook in asked.get("LifecycleHookSpecificationList", []):
        made.call("autoscaling", "put_lifecycle_hook", AutoScalingGroupName=made.id, **hook)


def _update_group(made: Made, asked: Properties) -> None:
    direct = {name: value for name, value in asked.items() if name != "TargetGroupARNs"}
    made.call("autoscaling", "update_auto_scaling_group", **_group(made, "update_auto_scaling_group", direct))
    before, after = (set(one.get("TargetGroupARNs", [])) for one in (made.properties, asked))
    for verb, targets in (("detach", before - after), ("attach", after - before)):
        if targets:
            operation = f"{verb}_load_balancer_target_groups"
            made.call("autoscaling", operation, AutoScalingGroupName=made.id, TargetGroupARNs=sorted(targets))
    if asked.get("Tags"):
        made.call("autoscaling", "create_or_update_tags", Tags=_tags(made, asked))
    _put_hooks(made, asked)


def _delete_group(made: Made) -> None:
    made.call("autoscaling", "delete_auto_scaling_group", AutoScalingGroupName=made.id, ForceDelete=True)


def _create_policy(made: Made) -> None:
    asked = {"PolicyName": made.id, **made.properties}
    made.id = made.call("autoscaling", "put_scaling_policy", **asked)["PolicyARN"]
    made.attributes = {"Arn": made.id, "PolicyName": asked["PolicyName"]}


def _delete_policy(made: Made) -> None:
    group = made.properties["AutoScalingGroupName"]
    made.call("autoscaling", "delete_policy", AutoScalingGroupName=group, PolicyName=made.attributes["PolicyName"])


def _create_balancer(made: Made) -> None:
    asked = {name: value for name, value in made.properties.items() if name != "LoadBalancerAttributes"}
    found = made.call("elbv2", "create_load_balancer", **{"Name": made.id, **asked})["LoadBalancers"][0]
    made.id = found["LoadBalancerArn"]
    made.attributes = {
        "LoadBalancerArn": made.id,
        "DNSName": found["DNSName"],
        "LoadBalancerName": found["LoadBalancerName"],
        "CanonicalHostedZoneID": found["CanonicalHostedZoneId"],
        "LoadBalancerFullName": made.id.partition("loadbalancer/")[2],
    }
    _set(made, "load_balancer", made.properties)


def _set(made: Made, what: str, asked: Properties) -> None:
    """The attributes, a list of key and value, of a load balancer or target group."""
    words = "".join(part.capitalize() for part in what.split("_"))
    if asked.get(f"{words}Attributes"):
        arguments = {f"{words}Arn": made.id, "Attributes": asked[f"{words}Attributes"]}
        made.call("elbv2", f"modify_{what}_attributes", **arguments)


def _update_balancer(made: Made, asked: Properties) -> None:
    if asked.get("SecurityGroups") != made.properties.get("SecurityGroups"):
        groups = asked.get("SecurityGroups", [])
        made.call("elbv2", "set_security_groups", LoadBalancerArn=made.id, SecurityGroups=groups)
    if asked.get("Subnets") != made.properties.get("Subnets"):
        made.call("elbv2", "set_subnets", LoadBalancerArn=made.id, Subnets=asked["Subnets"])
    _set(made, "load_balancer", asked)


def _delete_balancer(made: Made) -> None:
    made.call("elbv2", "delete_load_balancer", LoadBalancerArn=made.id)


def _create_targets(made: Made) -> None:
    asked = {name: v for name, v in made.properties.items() if name not in ("TargetGroupAttributes", "Targets")}
    found = made.call("elbv2", "create_target_group", **{"Name": made.id, **asked})["TargetGroups"][0]
    made.id = found["TargetGroupArn"]
    made.attributes = {
        "TargetGroupArn": made.id,
        "TargetGroupName": found["TargetGroupName"],
        "TargetGroupFullName": made.id.rpartition(":")[2],
    }
    _set(made, "target_group", made.properties)


def _update_targets(made: Made, asked: Properties) -> None:
    known = made.api.takes(made.region, "elbv2", "modify_target_group", asked)
    made.call("elbv2", "modify_target_group", TargetGroupArn=made.id, **known)
    _set(made, "target_group", asked)


def _delete_targets(made: Made) -> None:
    made.call("elbv2", "delete_target_group", TargetGroupArn=made.id)


def _create_listener(made: Made) -> None:
    asked = {name: value for name, value in made.properties.items() if name != "ListenerAttributes"}
    made.id = made.call("elbv2", "create_listener", **asked)["Listeners"][0]["ListenerArn"]
    made.attributes = {"ListenerArn": made.id}


def _update_listener(made: Made, asked: Properties) -> None:
    known = made.api.takes(made.region, "elbv2", "modify_listener", asked)
    made.call("elbv2", "modify_listener", ListenerArn=made.id, **known)


def _delete_listener(made: Made) -> None:
    made.call("elbv2", "delete_listener", ListenerArn=made.id)


def _create_rule(made: Made) -> None:
    made.id = made.call("elbv2", "create_rule", **made.properties)["Rules"][0]["RuleArn"]
    made.attributes = {"RuleArn": made.id}


def _delete_rule(made: Made) -> None:
    made.call("elbv2", "delete_rule", RuleArn=made.id)


KINDS = (
    Kind(
        "AWS::AutoScaling::AutoScalingGroup", _create_group, _delete_group, _update_group, name="AutoScalingGroupName"
    ),
    simple(
        "AWS::AutoScaling::LifecycleHook",
        "autoscaling",
        "put_lifecycle_hook",
        "delete_lifecycle_hook",
        name="LifecycleHookName",
        keys={"LifecycleHookName": "LifecycleHookName", "AutoScalingGroupName": "AutoScalingGroupName"},
        update=True,
    ),
    Kind("AWS::AutoScaling::ScalingPolicy", _create_policy, _delete_policy),
    Kind(
        "AWS::ElasticLoadBalancingV2::LoadBalancer", _create_balancer, _delete_balancer, _update_balancer, name="Name"
    ),
    Kind("AWS::ElasticLoadBalancingV2::TargetGroup", _create_targets, _delete_targets, _update_targets, name="Name"),
    Kind("AWS::ElasticLoadBalancingV2::Listener", _create_listener, _delete_listener, _update_listener),
    Kind("AWS::ElasticLoadBalancingV2::ListenerRule", _create_rule, _delete_rule),
)
