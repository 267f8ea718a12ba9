"""What a deployment made, read back through AWS's own APIs and compared with its templates and with the schema.

Every check returns what it saw in a few words, or raises `Failed`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.parameters import BY_NAME, PARAMETERS, ParameterError

Client = Any
Clients = Callable[[str], Client]

_USER_DATA_LIMIT = 16 * 1024


class Failed(AssertionError):
    """The text says what was expected and what was found."""


@dataclass(frozen=True, slots=True)
class Resource:
    stack: str
    name: str
    """In the template."""
    id: str
    """Physical."""
    properties: Mapping[str, Any]
    is_kept: bool
    """Stays when its stack goes."""


class View:
    """The stacks of one assembly, as they stand."""

    def __init__(self, assembly: Path, clients: Clients) -> None:
        self.clients = clients
        self.plan = json.loads((assembly / "plan.json").read_text())
        self._resources = list(self._read(assembly))

    def _read(self, assembly: Path) -> Iterator[tuple[str, Resource]]:
        for stack in self.plan["stacks"]:
            pages = self.clients("cloudformation").get_paginator("list_stack_resources").paginate(StackName=stack)
            made = {one["LogicalResourceId"]: one for page in pages for one in page["StackResourceSummaries"]}
            template = json.loads((assembly / f"{stack}.template.json").read_text())
            for name, resource in template["Resources"].items():
                if name in made:
                    found = Resource(
                        stack,
                        name,
                        made[name].get("PhysicalResourceId", ""),
                        resource.get("Properties", {}),
                        resource.get("DeletionPolicy") == "Retain",
                    )
                    yield resource["Type"], found

    def of(self, type_: str) -> list[Resource]:
        return [resource for kind, resource in self._resources if kind == type_]

    @property
    def types(self) -> frozenset[str]:
        return frozenset(kind for kind, _ in self._resources)

    @property
    def kept(self) -> frozenset[str]:
        """Names of what the stacks leave behind on purpose."""
        return frozenset(resource.id for _, resource in self._resources if resource.is_kept)


def _expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise Failed(f"{what} is {found!r}, expected {wanted!r}")


def texts(ssm: Client, path: str) -> dict[str, str]:
    """Name -> text of every parameter right below `path`."""
    pages = ssm.get_paginator("get_parameters_by_path").paginate(Path=path)
    return {one["Name"].rpartition("/")[2]: one["Value"] for page in pages for one in page["Parameters"]}


def check_tunables(view: View, path: str, changed: frozenset[str]) -> str:
    """All of the schema, nothing else, each valid; only `changed` ones differ from the schema's defaults."""
    found = texts(view.clients("ssm"), path)
    _expect(sorted(found), sorted(BY_NAME), f"the set of parameters below {path}")
    faults = []
    for parameter in PARAMETERS:
        try:
            value = parameter.parse(found[parameter.name])
        except ParameterError as error:
            faults.append(str(error))
            continue
        if value != parameter.default and parameter.name not in changed:
            faults.append(f"{parameter.name} is {value!r}, the schema's default is {parameter.default!r}")
    if faults:
        raise Failed("; ".join(faults))
    return f"{len(found)} tunables, {len(changed)} of them set by the profile"


def _group(view: View, resource: Resource) -> dict[str, Any]:
    answer = view.clients("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[resource.id])
    groups = answer["AutoScalingGroups"]
    if not groups:
        raise Failed(f"Auto Scaling group {resource.id} is not there")
    found: dict[str, Any] = groups[0]
    return found


def check_groups(view: View) -> str:
    counts = {machine["role"]: machine["count"] for machine in view.plan["machines"]}
    words = []
    for resource in view.of("AWS::AutoScaling::AutoScalingGroup"):
        group = _group(view, resource)
        role = next((role for role in counts if resource.id.endswith(role)), "")
        _expect(group["DesiredCapacity"], counts.get(role), f"desired capacity of {resource.id}")
        _expect(len(group["Instances"]), counts[role], f"machines of {resource.id}")
        template = group["LaunchTemplate"]
        latest = _versions(view, template["LaunchTemplateId"])[-1]["VersionNumber"]
        _expect(template["Version"], str(latest), f"launch template version of {resource.id}")
        words.append(f"{role} {counts[role]}")
    _expect(len(words), len(counts), "the number of Auto Scaling groups")
    return ", ".join(words)


def check_hooks(view: View) -> str:
    """Each group has one hook for each way, with the time-outs of its template."""
    seen = set()
    for resource in view.of("AWS::AutoScaling::AutoScalingGroup"):
        answer = view.clients("autoscaling").describe_lifecycle_hooks(AutoScalingGroupName=resource.id)
        found = {
            (hook["LifecycleHookName"], hook["LifecycleTransition"], hook["DefaultResult"], hook["HeartbeatTimeout"])
            for hook in answer["LifecycleHooks"]
        }
        wanted = {
            (hook["LifecycleHookName"], hook["LifecycleTransition"], hook["DefaultResult"], hook["HeartbeatTimeout"])
            for hook in resource.properties["LifecycleHookSpecificationList"]
        }
        _expect(sorted(found), sorted(wanted), f"the hooks of {resource.id}")
        _expect(len(found), 2, f"the number of hooks of {resource.id}")
        seen |= {f"{way.rpartition('_')[2].lower()} {result} {seconds} s" for _, way, result, seconds in found}
    return ", ".join(sorted(seen))


def _versions(view: View, number: str) -> list[dict[str, Any]]:
    answer = view.clients("ec2").describe_launch_template_versions(LaunchTemplateId=number)
    return sorted(answer["LaunchTemplateVersions"], key=lambda version: int(version["VersionNumber"]))


def check_templates(view: View) -> str:
    """Image, metadata service, disks, user data, and the interfaces as the template lays them out."""
    words = set()
    for resource in view.of("AWS::EC2::LaunchTemplate"):
        data = _versions(view, resource.id)[-1]["LaunchTemplateData"]
        wanted = resource.properties["LaunchTemplateData"]
        _expect(data["ImageId"] in view.plan["images"].values(), True, f"a pinned image in {resource.name}")
        _expect(data["MetadataOptions"]["HttpTokens"], "required", f"HttpTokens of {resource.name}")
        for disk in data["BlockDeviceMappings"]:
            _expect(disk["Ebs"].get("Encrypted"), True, f"Encrypted of {disk['DeviceName']} in {resource.name}")
        size = len(base64.b64decode(data["UserData"]))
        if size > _USER_DATA_LIMIT:
            raise Failed(f"user data of {resource.name} has {size} bytes, EC2 takes {_USER_DATA_LIMIT}")
        found = [_interface(one) for one in data["NetworkInterfaces"]]
        _expect(found, [_interface(one) for one in wanted["NetworkInterfaces"]], f"interfaces of {resource.name}")
        _expect(len(set(found)), len(found), f"interfaces at places of their own in {resource.name}")
        for one in data["NetworkInterfaces"]:
            _expect(bool(one.get("AssociatePublicIpAddress")), False, f"a public address in {resource.name}")
        words.add(f"{data['InstanceType']} with {len(found)} interfaces")
    return ", ".join(sorted(words))


def _interface(given: Mapping[str, Any]) -> tuple[int, int, str]:
    return int(given.get("NetworkCardIndex", 0)), int(given["DeviceIndex"]), given.get("InterfaceType", "interface")


def check_security_groups(view: View) -> str:
    """Every group is there with the rules of the templates; those on EFA interfaces reach themselves both ways."""
    ec2 = view.clients("ec2")
    efa = {
        group
        for resource in view.of("AWS::EC2::LaunchTemplate")
        for one in _versions(view, resource.id)[-1]["LaunchTemplateData"]["NetworkInterfaces"]
        if one.get("InterfaceType", "").startswith("efa")
        for group in one["Groups"]
    }
    groups = view.of("AWS::EC2::SecurityGroup")
    for group in ec2.describe_security_groups(GroupIds=sorted({resource.id for resource in groups} | efa))[
        "SecurityGroups"
    ]:
        if group["GroupId"] in efa:
            for way in ("IpPermissions", "IpPermissionsEgress"):
                _expect(_reaches_itself(group, way), True, f"{group['GroupName']} open to itself in {way}")
    rules = 0
    for way in ("Ingress", "Egress"):
        for resource in view.of(f"AWS::EC2::SecurityGroup{way}"):
            answer = ec2.describe_security_group_rules(
                Filters=[{"Name": "security-group-rule-id", "Values": [resource.id]}]
            )
            _expect(len(answer["SecurityGroupRules"]), 1, f"the number of rules made for {resource.name}")
            rules += 1
    return f"{len(groups)} groups, {rules} rules of their own, {len(efa)} with EFA open to itself both ways"


def _reaches_itself(group: Mapping[str, Any], way: str) -> bool:
    return any(
        permission["IpProtocol"] == "-1"
        and any(pair.get("GroupId") == group["GroupId"] for pair in permission.get("UserIdGroupPairs", []))
        for permission in group[way]
    )


def check_placement(view: View) -> str:
    placements = view.of("AWS::EC2::PlacementGroup")
    found = view.clients("ec2").describe_placement_groups()["PlacementGroups"]
    strategies = {group["GroupName"]: group["Strategy"] for group in found}
    used = {
        _group(view, resource).get("PlacementGroup")
        for resource in view.of("AWS::AutoScaling::AutoScalingGroup")
        if resource.properties.get("PlacementGroup")
    }
    _expect(used, {resource.id for resource in placements}, "the placement groups that Auto Scaling groups use")
    for resource in placements:
        _expect(strategies.get(resource.id), resource.properties["Strategy"], f"strategy of {resource.id}")
    return (
        ", ".join(f"{resource.id} {strategies[resource.id]}" for resource in placements) or "none, as the profile says"
    )


def check_balancer(view: View) -> str:
    elb = view.clients("elbv2")
    (balancer,) = view.of("AWS::ElasticLoadBalancingV2::LoadBalancer")
    (target,) = view.of("AWS::ElasticLoadBalancingV2::TargetGroup")
    answer = elb.describe_load_balancer_attributes(LoadBalancerArn=balancer.id)
    _check_attributes(answer["Attributes"], balancer.properties["LoadBalancerAttributes"], "load balancer")
    answer = elb.describe_target_group_attributes(TargetGroupArn=target.id)
    _check_attributes(answer["Attributes"], target.properties["TargetGroupAttributes"], "target group")
    group = elb.describe_target_groups(TargetGroupArns=[target.id])["TargetGroups"][0]
    _expect(group["HealthCheckPath"], target.properties["HealthCheckPath"], "health check path")
    listeners = elb.describe_listeners(LoadBalancerArn=balancer.id)["Listeners"]
    _expect(len(listeners), len(view.of("AWS::ElasticLoadBalancingV2::Listener")), "the number of listeners")
    targets = elb.describe_target_health(TargetGroupArn=target.id)["TargetHealthDescriptions"]
    routers = next(machine["count"] for machine in view.plan["machines"] if machine["role"] == "router")
    _expect(len(targets), routers, "the number of routers behind the load balancer")
    return f"{routers} routers, health check {group['HealthCheckPath']}"


def _check_attributes(found: list[dict[str, str]], wanted: list[dict[str, str]], what: str) -> None:
    values = {one["Key"]: one["Value"] for one in found}
    for one in wanted:
        _expect(values.get(one["Key"]), one["Value"], f"{one['Key']} of the {what}")


def check_watch(view: View) -> str:
    """Alarms, dashboards and log groups with their retention."""
    alarms = view.clients("cloudwatch").get_paginator("describe_alarms").paginate()
    names = {alarm["AlarmName"] for page in alarms for alarm in page["MetricAlarms"]}
    missing = {resource.id for resource in view.of("AWS::CloudWatch::Alarm")} - names
    _expect(missing, set(), "the set of missing alarms")
    dashboards = {one["DashboardName"] for one in view.clients("cloudwatch").list_dashboards()["DashboardEntries"]}
    _expect(len(dashboards), len(view.of("AWS::CloudWatch::Dashboard")), "the number of dashboards")
    pages = view.clients("logs").get_paginator("describe_log_groups").paginate()
    kept = {group["logGroupName"]: group.get("retentionInDays") for page in pages for group in page["logGroups"]}
    for resource in view.of("AWS::Logs::LogGroup"):
        _expect(kept.get(resource.id), resource.properties.get("RetentionInDays"), f"retention of {resource.id}")
    return f"{len(names)} alarms, {len(dashboards)} dashboards, {len(view.of('AWS::Logs::LogGroup'))} log groups"


CHECKS: tuple[tuple[str, Callable[[View], str]], ...] = (
    ("groups", check_groups),
    ("hooks", check_hooks),
    ("launch templates", check_templates),
    ("security groups", check_security_groups),
    ("placement", check_placement),
    ("load balancer", check_balancer),
    ("alarms and logs", check_watch),
)
