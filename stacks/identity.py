"""What a node may do, one role per kind of node: read its own parameters, complete its own hooks, report. Nothing else."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.config import Config
from stacks.userdata import group_name, prefix

METRICS_NAMESPACE = "KVRoundtrip"
STATE_TAG = "kv-roundtrip:state"
# What the SSM agent needs for a session, and no more; none of it has a resource.
# https://docs.aws.amazon.com/systems-manager/latest/userguide/getting-started-create-iam-instance-profile.html
SESSION_ACTIONS = (
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)


class Identity(Construct):
    """Role and instance profile of the nodes of `role`."""

    def __init__(self, scope: Construct, construct_id: str, *, config: Config, role: str) -> None:
        super().__init__(scope, construct_id)
        self._stack = cdk.Stack.of(self)
        self._config = config
        self.role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
            description=f"{config.name}: {role} nodes",
        )
        self._allow_sessions()
        self._allow_parameters()
        self._allow_own_group(role)
        self._allow_reports(role)
        if role == "router":
            # EC2 can't limit Describe calls to some instances.
            self._allow("ec2:DescribeInstances", resources=["*"])
        else:
            self._allow_weights()
        self.profile = iam.CfnInstanceProfile(self, "Profile", roles=[self.role.role_name])

    def hold(self, nodes: cdk.CfnResource) -> None:
        """`nodes` come after the profile and the policy, and go before them: a node that may not complete its termination hook
        stays, and costs, until the hook times out."""
        policy = self.role.node.find_child("DefaultPolicy").node.default_child
        assert isinstance(policy, cdk.CfnResource)
        for needed in (self.profile, policy):
            nodes.add_resource_dependency(needed)

    def _allow(self, *actions: str, resources: list[str], conditions: dict[str, Any] | None = None) -> None:
        self.role.add_to_policy(
            iam.PolicyStatement(actions=list(actions), resources=resources, conditions=conditions or {})
        )

    def _arn(self, service: str, resource: str, account: str | None = None) -> str:
        where = self._stack.account if account is None else account
        return f"arn:{self._stack.partition}:{service}:{self._stack.region}:{where}:{resource}"

    def _allow_sessions(self) -> None:
        """Session Manager: a shell on a node without a key or an open port. Not AmazonSSMManagedInstanceCore, which also lets a
        node read every parameter of the account, the hub's token among them.
        """
        self._allow(*SESSION_ACTIONS, resources=["*"])

    def _allow_parameters(self) -> None:
        self._allow("ssm:GetParametersByPath", resources=[self._arn("ssm", f"parameter{prefix(self._config)}")])

    def _allow_own_group(self, role: str) -> None:
        name = group_name(self._config, role)
        group = self._arn("autoscaling", f"autoScalingGroup:*:autoScalingGroupName/{name}")
        self._allow(
            "autoscaling:CompleteLifecycleAction",
            "autoscaling:RecordLifecycleActionHeartbeat",
            "autoscaling:SetInstanceHealth",
            "autoscaling:SuspendProcesses",
            resources=[group],
        )
        # Can't be limited to one group; it only reads.
        self._allow("autoscaling:DescribeScalingActivities", resources=["*"])
        stack = f"stack/{self._stack.stack_name}/*"
        self._allow("cloudformation:SignalResource", resources=[self._arn("cloudformation", stack)])
        self._allow(
            "ec2:CreateTags",
            resources=[self._arn("ec2", "instance/*")],
            conditions={
                "StringEquals": {"aws:ResourceTag/kv-roundtrip:deployment": self._config.name},
                "ForAllValues:StringEquals": {"aws:TagKeys": [STATE_TAG]},
            },
        )

    def _allow_reports(self, role: str) -> None:
        self._allow(
            "cloudwatch:PutMetricData",
            resources=["*"],
            conditions={"StringEquals": {"cloudwatch:namespace": METRICS_NAMESPACE}},
        )
        self._allow(
            "logs:CreateLogStream",
            "logs:PutLogEvents",
            "logs:DescribeLogStreams",
            resources=[self._arn("logs", f"log-group:{log_group_name(self._config, role)}:*")],
        )

    def _allow_weights(self) -> None:
        model = self._config.model
        if model.hub_token_parameter:
            self._allow("ssm:GetParameter", resources=[self._arn("ssm", f"parameter{model.hub_token_parameter}")])
        if model.weights.startswith("s3://"):
            bucket, _, path = model.weights.removeprefix("s3://").partition("/")
            arn = f"arn:{self._stack.partition}:s3:::{bucket}"
            self._allow("s3:GetObject", resources=[f"{arn}/{path.rstrip('/')}/*"])
            self._allow(
                "s3:ListBucket", resources=[arn], conditions={"StringLike": {"s3:prefix": [f"{path.rstrip('/')}/*"]}}
            )


def log_group_name(config: Config, role: str) -> str:
    return f"/{config.name}/{role}"
