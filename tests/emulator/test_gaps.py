"""Each gap of moto that the emulator closes: these fail on moto as it is."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest
from botocore.exceptions import ClientError

from scripts.inventory import inventory
from tests.emulator.process import Running, running

_names = itertools.count()
_ANY = ("-1", "0.0.0.0/0")


class Stack:
    def __init__(self, aws: Running, resources: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> None:
        self._cf = aws.client("cloudformation")
        self.name = f"stack-{next(_names)}"
        self._cf.create_stack(StackName=self.name, TemplateBody=_body(resources, outputs))

    def id(self, name: str) -> str:
        found: str = self._cf.describe_stack_resource(StackName=self.name, LogicalResourceId=name)[
            "StackResourceDetail"
        ]["PhysicalResourceId"]
        return found

    def update(self, resources: Mapping[str, Any]) -> None:
        self._cf.update_stack(StackName=self.name, TemplateBody=_body(resources, None))

    def delete(self) -> None:
        self._cf.delete_stack(StackName=self.name)


def _body(resources: Mapping[str, Any], outputs: Mapping[str, Any] | None) -> str:
    return json.dumps({"Resources": resources, "Outputs": outputs or {}})


def _of(type_: str, **properties: Any) -> dict[str, Any]:
    return {"Type": f"AWS::{type_}", "Properties": properties}


def _ref(name: str) -> dict[str, str]:
    return {"Ref": name}


def _att(name: str, attribute: str) -> dict[str, list[str]]:
    return {"Fn::GetAtt": [name, attribute]}


_VPC = _of("EC2::VPC", CidrBlock="10.1.0.0/16")
_SUBNET = _of("EC2::Subnet", VpcId=_ref("Vpc"), CidrBlock="10.1.0.0/24", AvailabilityZone="us-east-2a")
_SUBNET_B = _of("EC2::Subnet", VpcId=_ref("Vpc"), CidrBlock="10.1.1.0/24", AvailabilityZone="us-east-2b")


def _template(data: str) -> dict[str, Any]:
    interfaces = [
        {"DeviceIndex": 0, "NetworkCardIndex": 0, "InterfaceType": "interface"},
        {"DeviceIndex": 1, "NetworkCardIndex": 0, "InterfaceType": "efa-only"},
    ]
    disk = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 20, "DeleteOnTermination": True}}
    return _of(
        "EC2::LaunchTemplate",
        LaunchTemplateData={
            "InstanceType": "c7i.large",
            "ImageId": "ami-12c6146b",
            "UserData": {"Fn::Base64": data},
            "NetworkInterfaces": interfaces,
            "BlockDeviceMappings": [disk],
        },
    )


def _group(**properties: Any) -> dict[str, Any]:
    return _of(
        "AutoScaling::AutoScalingGroup",
        MinSize="0",
        MaxSize="2",
        DesiredCapacity="1",
        VPCZoneIdentifier=[_ref("Subnet")],
        LaunchTemplate={"LaunchTemplateId": _ref("Template"), "Version": _att("Template", "LatestVersionNumber")},
        **properties,
    )


def _rules(aws: Running, group: str, way: str) -> set[tuple[str, str]]:
    (found,) = aws.client("ec2").describe_security_groups(GroupIds=[group])["SecurityGroups"]
    rules = set()
    for rule in found[way]:
        rules |= {(rule["IpProtocol"], one["CidrIp"]) for one in rule["IpRanges"]}
        rules |= {(rule["IpProtocol"], one["GroupId"]) for one in rule["UserIdGroupPairs"]}
    return rules


def _things(aws: Running) -> frozenset[str]:
    return inventory(aws.client)


def test_rep_17_rules_outside_of_the_group_both_ways(aws: Running) -> None:
    rule = {"GroupId": _att("Group", "GroupId"), "IpProtocol": "-1"}
    nothing = {"CidrIp": "255.255.255.255/32", "IpProtocol": "icmp", "FromPort": 252, "ToPort": 86}
    stack = Stack(
        aws,
        {
            "Vpc": _VPC,
            "Group": _of(
                "EC2::SecurityGroup", GroupDescription="efa", VpcId=_ref("Vpc"), SecurityGroupEgress=[nothing]
            ),
            "In": _of("EC2::SecurityGroupIngress", SourceSecurityGroupId=_att("Group", "GroupId"), **rule),
            "Out": _of("EC2::SecurityGroupEgress", DestinationSecurityGroupId=_att("Group", "GroupId"), **rule),
        },
    )
    group = stack.id("Group")
    assert _rules(aws, group, "IpPermissions") == {("-1", group)}
    assert _rules(aws, group, "IpPermissionsEgress") == {("-1", group), ("icmp", "255.255.255.255/32")}
    stack.delete()


def test_a_group_that_names_no_egress_keeps_the_rule_that_ec2_gives_it(aws: Running) -> None:
    stack = Stack(aws, {"Vpc": _VPC, "Group": _of("EC2::SecurityGroup", GroupDescription="any", VpcId=_ref("Vpc"))})
    assert _rules(aws, stack.id("Group"), "IpPermissionsEgress") == {_ANY}
    stack.delete()


def test_rules_of_a_group_change_in_place(aws: Running) -> None:
    def resources(port: int) -> dict[str, Any]:
        rule = {"CidrIp": "10.0.0.0/8", "IpProtocol": "tcp", "FromPort": port, "ToPort": port}
        words = {"GroupDescription": "any", "VpcId": _ref("Vpc"), "SecurityGroupIngress": [rule]}
        return {"Vpc": _VPC, "Group": _of("EC2::SecurityGroup", **words)}

    stack = Stack(aws, resources(80))
    before = stack.id("Group")
    stack.update(resources(443))
    (found,) = aws.client("ec2").describe_security_groups(GroupIds=[before])["SecurityGroups"]
    assert [rule["FromPort"] for rule in found["IpPermissions"]] == [443]
    stack.delete()


def test_placement_group(aws: Running) -> None:
    ec2 = aws.client("ec2")
    stack = Stack(
        aws,
        {"Placement": _of("EC2::PlacementGroup", Strategy="cluster")},
        {"Name": {"Value": _att("Placement", "GroupName")}},
    )
    (group,) = ec2.describe_placement_groups(GroupNames=[stack.id("Placement")])["PlacementGroups"]
    assert (group["Strategy"], group["State"]) == ("cluster", "available")
    stack.delete()
    assert ec2.describe_placement_groups()["PlacementGroups"] == []


def test_a_whole_network_leaves_nothing(aws: Running) -> None:
    before = _things(aws)
    stack = Stack(
        aws,
        {
            "Vpc": _VPC,
            "Subnet": _SUBNET,
            "Gateway": _of("EC2::InternetGateway"),
            "Attachment": _of("EC2::VPCGatewayAttachment", VpcId=_ref("Vpc"), InternetGatewayId=_ref("Gateway")),
            "Address": _of("EC2::EIP", Domain="vpc"),
            "Nat": _of("EC2::NatGateway", SubnetId=_ref("Subnet"), AllocationId=_att("Address", "AllocationId")),
            "Table": _of("EC2::RouteTable", VpcId=_ref("Vpc")),
            "Route": _of(
                "EC2::Route", RouteTableId=_ref("Table"), DestinationCidrBlock="0.0.0.0/0", NatGatewayId=_ref("Nat")
            ),
            "Association": _of("EC2::SubnetRouteTableAssociation", RouteTableId=_ref("Table"), SubnetId=_ref("Subnet")),
            "S3": _of(
                "EC2::VPCEndpoint",
                VpcId=_ref("Vpc"),
                ServiceName="com.amazonaws.us-east-2.s3",
                RouteTableIds=[_ref("Table")],
                VpcEndpointType="Gateway",
            ),
        },
    )
    assert len(_things(aws) - before) > 8
    stack.delete()
    assert _things(aws) == before


def test_a_machine_takes_its_disks_and_interfaces_with_it(aws: Running) -> None:
    before = _things(aws)
    stack = Stack(aws, {"Vpc": _VPC, "Subnet": _SUBNET, "Template": _template("one"), "Group": _group()})
    assert any(" instances " in name for name in _things(aws) - before)
    stack.delete()
    assert _things(aws) == before


def test_rep_18_a_group_follows_the_new_version_of_its_template(aws: Running) -> None:
    def resources(data: str, **more: Any) -> dict[str, Any]:
        return {"Vpc": _VPC, "Subnet": _SUBNET, "Template": _template(data), "Group": _group(**more)}

    scaling = aws.client("autoscaling")
    stack = Stack(aws, resources("one"))
    for version, (data, grace) in enumerate((("two", 300), ("three", 600)), start=2):
        # The second time the group itself changes too, beside its template.
        stack.update(resources(data, HealthCheckGracePeriod=grace))
        (group,) = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[stack.id("Group")])["AutoScalingGroups"]
        assert group["LaunchTemplate"]["Version"] == str(version)
    stack.delete()


def test_hooks_of_a_group_and_beside_it(aws: Running) -> None:
    hook = {"LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING", "HeartbeatTimeout": 1800}
    resources = {
        "Vpc": _VPC,
        "Subnet": _SUBNET,
        "Template": _template("one"),
        "Group": _group(LifecycleHookSpecificationList=[{"LifecycleHookName": "within", **hook}]),
        "Hook": _of(
            "AutoScaling::LifecycleHook", AutoScalingGroupName=_ref("Group"), LifecycleHookName="beside", **hook
        ),
    }
    stack = Stack(aws, resources)
    answer = aws.client("autoscaling").describe_lifecycle_hooks(AutoScalingGroupName=stack.id("Group"))
    assert {one["LifecycleHookName"]: one["HeartbeatTimeout"] for one in answer["LifecycleHooks"]} == {
        "within": 1800,
        "beside": 1800,
    }
    stack.delete()


def _balanced(delay: str) -> dict[str, Any]:
    attributes = [{"Key": "deregistration_delay.timeout_seconds", "Value": delay}]
    return {
        "Vpc": _VPC,
        "Subnet": _SUBNET,
        "SubnetB": _SUBNET_B,
        "Balancer": _of("ElasticLoadBalancingV2::LoadBalancer", Subnets=[_ref("Subnet"), _ref("SubnetB")]),
        "Targets": _of(
            "ElasticLoadBalancingV2::TargetGroup",
            VpcId=_ref("Vpc"),
            Port=8080,
            Protocol="HTTP",
            TargetGroupAttributes=attributes,
        ),
    }


def test_target_group_changes_in_place_up_to_the_longest_delay(aws: Running) -> None:
    stack = Stack(aws, _balanced("60"))
    arn = stack.id("Targets")
    stack.update(_balanced("3600"))
    answer = aws.client("elbv2").describe_target_group_attributes(TargetGroupArn=arn)
    assert {one["Key"]: one["Value"] for one in answer["Attributes"]}["deregistration_delay.timeout_seconds"] == "3600"
    stack.delete()


def test_asking_for_a_deleted_stack_does_not_make_it_again(aws: Running) -> None:
    before = _things(aws)
    cf = aws.client("cloudformation")
    stack = Stack(aws, _balanced("60"), {"Url": {"Value": _att("Balancer", "DNSName")}})
    number = cf.describe_stacks(StackName=stack.name)["Stacks"][0]["StackId"]
    stack.delete()
    assert cf.describe_stacks(StackName=number)["Stacks"][0]["StackStatus"] == "DELETE_COMPLETE"
    assert _things(aws) == before


def test_a_changed_parameter_keeps_its_history(aws: Running) -> None:
    def resources(value: str) -> dict[str, Any]:
        return {"Parameter": _of("SSM::Parameter", Name="/gaps/one", Type="String", Value=value)}

    stack = Stack(aws, resources("1"))
    stack.update(resources("2"))
    found = aws.client("ssm").get_parameter(Name="/gaps/one")["Parameter"]
    assert (found["Value"], found["Version"]) == ("2", 2)
    stack.delete()


def test_a_stack_of_a_change_set_has_outputs(aws: Running) -> None:
    cf = aws.client("cloudformation")
    resources = {"Topic": _of("SNS::Topic")}
    cf.create_change_set(
        StackName="by-change-set",
        ChangeSetName="one",
        ChangeSetType="CREATE",
        TemplateBody=_body(resources, {"Version": {"Value": "32"}}),
    )
    cf.execute_change_set(StackName="by-change-set", ChangeSetName="one")
    assert cf.describe_stacks(StackName="by-change-set")["Stacks"][0]["Outputs"][0]["OutputValue"] == "32"
    cf.delete_stack(StackName="by-change-set")


def test_valkey_and_its_subnets_leave_nothing(aws: Running) -> None:
    before = _things(aws)
    stack = Stack(
        aws,
        {
            "Vpc": _VPC,
            "Subnet": _SUBNET,
            "Subnets": _of("ElastiCache::SubnetGroup", Description="routers", SubnetIds=[_ref("Subnet")]),
            "Valkey": _of(
                "ElastiCache::ReplicationGroup",
                ReplicationGroupDescription="handles",
                Engine="valkey",
                CacheNodeType="cache.t4g.small",
                NumCacheClusters=2,
                AutomaticFailoverEnabled=True,
                CacheSubnetGroupName=_ref("Subnets"),
            ),
        },
        {"Address": {"Value": _att("Valkey", "PrimaryEndPoint.Address")}},
    )
    assert any("replication_groups" in name for name in _things(aws) - before)
    stack.delete()
    assert _things(aws) == before


def test_a_wrong_property_fails_by_its_name(aws: Running) -> None:
    with pytest.raises(ClientError, match=r"(?s)AWS::CloudWatch::Alarm.*Treshold"):
        Stack(aws, {"Alarm": _of("CloudWatch::Alarm", EvaluationPeriods=1, ComparisonOperator="x", Treshold=1)})


def test_what_is_left_out_is_named() -> None:
    with running() as fresh:
        stack = Stack(
            fresh, {"Topic": _of("SNS::Topic"), "Odd": _of("Odd::Thing"), "Usage": _of("CDK::Metadata", Analytics="x")}
        )
        assert fresh.report()["gaps"] == {"create": ["AWS::Odd::Thing"]}
        vpc = {"Vpc": _VPC}
        stack.update(vpc)
        stack.update({"Vpc": {**_VPC, "Metadata": {"aws:cdk:path": "moved"}}})
        assert fresh.report()["gaps"] == {"create": ["AWS::Odd::Thing"]}
        stack.update({"Vpc": _of("EC2::VPC", CidrBlock="10.2.0.0/16")})
        assert fresh.report()["gaps"]["update"] == ["AWS::EC2::VPC"]


def test_records_are_listed_while_they_are_there(aws: Running) -> None:
    words = {"Name": "install", "Platform": "Linux", "Version": "1.0.0", "Data": "name: install"}
    stack = Stack(aws, {"Component": _of("ImageBuilder::Component", **words)})
    (found,) = (one for one in aws.report()["recorded"] if one["type"] == "AWS::ImageBuilder::Component")
    assert found["id"] == stack.id("Component") and found["properties"]["Version"] == "1.0.0"
    stack.delete()
    assert not any(one["type"] == "AWS::ImageBuilder::Component" for one in aws.report()["recorded"])
