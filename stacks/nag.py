"""cdk-nag over every template, with each acknowledged finding and its reason in this one place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import aws_cdk as cdk
from cdk_nag import AwsSolutionsChecks

from stacks.config import Config
from stacks.deployment import Deployment
from stacks.identity import log_group_name
from stacks.userdata import group_name

_PACK = "AwsSolutions::AwsSolutions-"

_MANAGED = {
    "AmazonSSMManagedInstanceCore": "Image Builder runs its components through the SSM agent; no secret is near these machines.",
    "EC2InstanceProfileForImageBuilder": "What Image Builder's own agent needs; AWS keeps it in step with the service.",
    "EC2ImageBuilderExecutionPolicy": "What Image Builder needs to run a pipeline; AWS keeps it in step with the service.",
}
_AS3 = "A failed launch is reported by an EventBridge rule; mail for each ordinary launch would hide it."
_ELB2 = "Routers log every request with its id. Set edge.access_log_bucket for the balancer's own log."
_AEC6 = "A token would be a secret in a template. Only routers reach the store, over TLS; it holds no text and no KV."
_DESCRIBE = "Describe calls, the SSM agent's and PutMetricData have no resource; the last is limited to our namespace."
_GROUP = "Auto Scaling puts a random id into a group's ARN; the name after it is exact."
_INSTANCE = "The instance id is not known before; a condition limits it to this deployment's nodes and one tag."
_STACK = "The stack's id follows its name in the ARN; the name is exact."
_STREAM = "Log streams of one exact log group."
_WEIGHTS = "Objects below one prefix of the weights' bucket."


def add_checks(app: cdk.App, deployment: Deployment) -> None:
    """A finding that is not acknowledged here fails the synthesis."""
    cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    for stack in deployment.stacks:
        reasons = dict(_acknowledged(deployment.config, stack))
        cdk.Validations.of(stack).acknowledge(
            *(cdk.Acknowledgment(id=f"{_PACK}{rule}", reason=reason) for rule, reason in reasons.items())
        )


def _acknowledged(config: Config, stack: cdk.Stack) -> Iterable[tuple[str, str]]:
    """(rule, reason) of `stack`, by the part of its name after the deployment's."""
    kind = stack.stack_name.removeprefix(f"{config.name}-")
    if kind == "images":
        for policy in _MANAGED:
            yield _managed(policy)
        yield _wildcard("Resource::*"), _DESCRIBE
    roles = {"engines": ("prefill", "decode"), "routing": ("router",)}.get(kind, ())
    if not roles:
        return
    yield "AS3", _AS3
    yield from _node_wildcards(config, stack, roles).items()
    if kind == "routing" and not config.edge.access_log_bucket:
        yield "ELB2", _ELB2
    if kind == "routing" and config.router.count > 1:
        yield "AEC6", _AEC6


def _node_wildcards(config: Config, stack: cdk.Stack, roles: tuple[str, ...]) -> Mapping[str, str]:
    partition = "<AWS::Partition>" if cdk.Token.is_unresolved(stack.partition) else stack.partition

    def arn(service: str, resource: str) -> str:
        return _wildcard(f"Resource::arn:{partition}:{service}:{config.region}:<AWS::AccountId>:{resource}")

    found = {
        _wildcard("Resource::*"): _DESCRIBE,
        arn("ec2", "instance/*"): _INSTANCE,
        arn("cloudformation", f"stack/{stack.stack_name}/*"): _STACK,
    }
    for role in roles:
        found[arn("autoscaling", f"autoScalingGroup:*:autoScalingGroupName/{group_name(config, role)}")] = _GROUP
        found[arn("logs", f"log-group:{log_group_name(config, role)}:*")] = _STREAM
    if config.model.weights.startswith("s3://"):
        path = config.model.weights.removeprefix("s3://").rstrip("/")
        found[_wildcard(f"Resource::arn:{partition}:s3:::{path}/*")] = _WEIGHTS
    return found


def _managed(policy: str) -> tuple[str, str]:
    return f"IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/{policy}]", _MANAGED[policy]


def _wildcard(what: str) -> str:
    return f"IAM5[{what}]"
