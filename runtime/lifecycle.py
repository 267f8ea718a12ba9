"""`python -m runtime.lifecycle ready|abandon`: tells Auto Scaling that this node serves, or never will.

`ready` waits for the node's service, tags the instance as serving and completes the launch hook with CONTINUE; it fails as
soon as systemd has given the service up. `abandon` completes the hook with ABANDON and exits with 1; with the third node in a
row it first tells the group to launch no more. Both also signal the CloudFormation stack that waits for its nodes. Where
nobody waits, as after a reboot, that is said and no error of its own.
"""

from __future__ import annotations

import argparse
import http.client
import logging
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

from botocore.exceptions import ClientError

from runtime import direct, launches, log, service
from runtime.metadata import Metadata, MetadataError
from runtime.node import NodeConfig, NodeError, draining_mark
from runtime.patience import insist
from runtime.source import AWS_ERRORS, client, explain

logger = logging.getLogger(__name__)

STATE_TAG = "kv-roundtrip:state"
_HEARTBEAT_S = 60.0
_POLL_S = 2.0
_PROBE_S = 5.0
_READY_LIMIT_S = 120.0
_ABANDON_LIMIT_S = 900.0
"""A node whose metadata or AWS does not answer yet costs as much as any: worth some patience to be rid of it."""
_NOTHING_PENDING = "No active Lifecycle Action"


class NotReady(RuntimeError):
    """The service did not answer in time. The text says what was last seen, and has a hint."""


class Instance:
    """This machine, as EC2 and Auto Scaling know it. Its methods raise what boto3 raises, and `MetadataError`."""

    def __init__(self, node: NodeConfig, metadata: Metadata) -> None:
        self._node = node
        self._metadata = metadata
        self._known: dict[str, str] = {}
        self._autoscaling = client("autoscaling", node.region, node.endpoint_url)
        self._ec2 = client("ec2", node.region, node.endpoint_url)
        self._cloudformation = client("cloudformation", node.region, node.endpoint_url)
        self._held = -_HEARTBEAT_S

    @property
    def identity(self) -> str:
        return self._fact("instance-id")

    def service_url(self) -> str:
        """Where this node's engine or router listens: its private address."""
        port = self._node.engine_port if self._node.is_engine else self._node.router_port
        return f"http://{self._fact('local-ipv4')}:{port}"

    def _fact(self, path: str) -> str:
        """What does not change while the instance lives."""
        if path not in self._known:
            self._known[path] = self._metadata.require(path)
        return self._known[path]

    def complete(self, hook: str, result: str) -> bool:
        """False when no action of that hook waits: it was completed before, or the node has none."""
        return bool(hook) and self._of_hook(
            self._autoscaling.complete_lifecycle_action, hook, LifecycleActionResult=result
        )

    def heartbeat(self, hook: str) -> bool:
        """Starts the hook's time-out again. False as in `complete`."""
        return bool(hook) and self._of_hook(self._autoscaling.record_lifecycle_action_heartbeat, hook)

    def _of_hook(self, call: Callable[..., Any], hook: str, **more: str) -> bool:
        try:
            call(LifecycleHookName=hook, AutoScalingGroupName=self._node.group, InstanceId=self.identity, **more)
        except ClientError as error:
            if _NOTHING_PENDING in str(error):
                return False
            raise
        return True

    def signal(self, success: bool) -> bool:
        """To the stack that creates or updates the group. False when none waits for this node."""
        if not self._node.stack:
            return False
        try:
            self._cloudformation.signal_resource(
                StackName=self._node.stack, LogicalResourceId=self._node.group_resource, UniqueId=self.identity,
                Status="SUCCESS" if success else "FAILURE",
            )  # fmt: skip
        except ClientError as error:
            # "... is in CREATE_COMPLETE state and cannot be signaled", and the like for a signal sent twice.
            if error.response["Error"]["Code"] != "ValidationError":
                raise
            return False
        return True

    def tag_state(self, state: str) -> None:
        self._ec2.create_tags(Resources=[self.identity], Tags=[{"Key": STATE_TAG, "Value": state}])

    def hold_termination(self) -> None:
        if time.monotonic() >= self._held + _HEARTBEAT_S:
            self.heartbeat(self._node.terminate_hook)
            self._held = time.monotonic()

    def let_terminate(self) -> None:
        done = self.complete(self._node.terminate_hook, "CONTINUE")
        logger.warning("termination may go on%s", "" if done else "; no hook was waiting")

    def limit_launches(self) -> bool:
        """See `runtime.launches.limit`."""
        return launches.limit(self._autoscaling, self._node.group, self._node.region)

    def set_unhealthy(self) -> None:
        """Auto Scaling replaces the instance, once the group's grace period is over."""
        self._autoscaling.set_instance_health(InstanceId=self.identity, HealthStatus="Unhealthy")


def probe(url: str) -> str | None:
    """Why `url` does not answer 200, or None."""
    try:
        with direct.opener.open(url, timeout=_PROBE_S):
            return None
    except urllib.error.HTTPError as error:
        error.close()
        return f"{url} answers {error.code}"
    except (OSError, http.client.HTTPException) as error:
        return f"{url}: {getattr(error, 'reason', '') or error}"


def wait(
    look: Callable[[], str | None], budget_s: float, beat: Callable[[], object], every_s: float = _HEARTBEAT_S
) -> float:
    """Seconds until `look` had nothing to say against it; `beat` is called meanwhile. Raises `NotReady` after the budget, and
    what `look` raises."""
    start = time.monotonic()
    beaten = start
    while (fault := look()) is not None:
        now = time.monotonic()
        if now - start >= budget_s:
            raise NotReady(
                f"not ready after {now - start:.0f} s: {fault}. hint: see `journalctl -u kv-roundtrip-engine` or "
                "`-u kv-roundtrip-router`; a larger model needs a larger load_budget_s in the deployment's configuration"
            )
        if now - beaten >= every_s:
            beaten = now
            try:
                beat()
            except (*AWS_ERRORS, MetadataError) as error:
                # The service may be ready long before the hook's own time-out.
                logger.warning("no heartbeat: %s", explain(error))
        time.sleep(min(_POLL_S, max(0.0, start + budget_s - now)))
    return time.monotonic() - start


def look(node: NodeConfig, instance: Instance) -> str | None:
    """Why this node does not serve yet, or None. Raises `NotReady` when it won't."""
    try:
        # Not the router's /ready: its engines may come later, and it is up without them.
        fault = probe(f"{instance.service_url()}/health")
    except MetadataError as error:
        fault = str(error)
    if fault is not None and (state := service.state(node.unit)) in (service.FAILED, service.INACTIVE):
        raise NotReady(
            f"{node.unit} is {state} and systemd does not start it again: {fault}. hint: see `journalctl -u {node.unit}` and "
            f"/var/log/kv-roundtrip; then `systemctl reset-failed {node.unit}` and start it"
        )
    return fault


def ready(node: NodeConfig, instance: Instance, heartbeat_s: float = _HEARTBEAT_S) -> None:
    """The budget counts from here: what came before, the download of weights too, had the hook's own time-out."""
    took = wait(
        lambda: look(node, instance), node.load_budget_s, lambda: instance.heartbeat(node.launch_hook), heartbeat_s
    )
    logger.info("%s answers after %.0f s", node.unit, took)
    # After a reboot the agent may know already that this node is to leave, and its word is the last.
    if not draining_mark().exists():
        # First: a node in service without the tag of one that serves would get no turns, and nobody would see it.
        insist(lambda: instance.tag_state("serving"), _READY_LIMIT_S)
    done = insist(lambda: instance.complete(node.launch_hook, "CONTINUE"), _READY_LIMIT_S)
    logger.info("launch hook: %s", "CONTINUE" if done else "none was waiting, this node was in service before")
    told = insist(lambda: instance.signal(success=True), _READY_LIMIT_S)
    logger.info("stack: %s", "told of success" if told else "none was waiting")


def abandon(node: NodeConfig, instance: Instance, reason: str, limit_s: float = _ABANDON_LIMIT_S) -> None:
    logger.error("abandoning this node: %s", reason)
    # A heartbeat tells whether the hook waits: a node in service that fails is no failed launch.
    launching = insist(lambda: instance.heartbeat(node.launch_hook), limit_s)
    if launching:
        try:
            # Before the hook is completed: the next launch follows at once.
            instance.limit_launches()
        except AWS_ERRORS as error:
            logger.error("how often launches failed is not known: %s", explain(error))
    done = insist(lambda: instance.complete(node.launch_hook, "ABANDON"), limit_s)
    logger.error("launch hook: %s", "ABANDON" if done else "none was waiting; Auto Scaling keeps this node")
    # Nor is it one to the stack, which may be updating others of its group.
    told = launching and insist(lambda: instance.signal(success=False), limit_s)
    logger.error("stack: %s", "told of failure" if told else "none was waiting")


def _configuration(salvaged: bool) -> NodeConfig:
    """Raises `NodeError`. `salvaged`: a wrong one is better than none."""
    try:
        return NodeConfig.read()
    except NodeError as error:
        if not salvaged:
            raise
        logger.error("%s", error)
        return NodeConfig.salvage()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m runtime.lifecycle", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("what", choices=("ready", "abandon"))
    parser.add_argument("--reason", default="no reason given", help="why, for `abandon`'s log")
    given = parser.parse_args(argv)
    log.configure()
    try:
        node = _configuration(salvaged=given.what == "abandon")
        instance = Instance(node, Metadata(node.metadata_url))
        if given.what == "abandon":
            abandon(node, instance, given.reason)
            return 1
        ready(node, instance)
        return 0
    except (NodeError, MetadataError, NotReady) as error:
        logger.error("%s", error)
    except AWS_ERRORS as error:
        logger.error("%s", explain(error))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
