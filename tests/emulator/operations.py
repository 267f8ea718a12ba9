"""Operations of moto's APIs that are missing or wrong: EC2's placement groups, what others leave behind, the longest delay."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models import EC2Backend
from moto.ec2.models.instances import Instance
from moto.ec2.responses import EC2Response
from moto.elasticache.models import ElastiCacheBackend
from moto.elasticache.responses import ElastiCacheResponse
from moto.elbv2.models import ELBv2Backend
from moto.moto_api._internal import mock_random

_groups: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}


def install() -> None:
    for operation in (create_placement_group, describe_placement_groups, delete_placement_group):
        setattr(EC2Response, operation.__name__, operation)
    ElastiCacheResponse.delete_cache_subnet_group = delete_cache_subnet_group
    _end_caches()
    _end_machines()
    _end_gateways()
    _allow_longest_delay()


def _of(response: EC2Response) -> dict[str, dict[str, Any]]:
    return _groups.setdefault((response.current_account, response.region), {})


def create_placement_group(response: EC2Response) -> ActionResult:
    name = response._get_param("GroupName")
    specifications = response._get_param("TagSpecifications", [])
    group = {
        "GroupName": name,
        "State": "available",
        "Strategy": response._get_param("Strategy", "cluster"),
        "GroupId": f"pg-{mock_random.get_random_hex(17)}",
        "Tags": [tag for one in specifications for tag in one.get("Tags", [])],
    }
    _of(response)[name] = group
    return ActionResult({"PlacementGroup": group})


def describe_placement_groups(response: EC2Response) -> ActionResult:
    names = response._get_param("GroupNames", [])
    groups = [group for name, group in _of(response).items() if not names or name in names]
    return ActionResult({"PlacementGroups": groups})


def delete_placement_group(response: EC2Response) -> ActionResult:
    _of(response).pop(response._get_param("GroupName"), None)
    return ActionResult({})


def delete_cache_subnet_group(response: ElastiCacheResponse) -> ActionResult:
    response.elasticache_backend.cache_subnet_groups.pop(response._get_param("CacheSubnetGroupName"), None)
    return ActionResult({})


def _end_caches() -> None:
    """A deleted replication group would be `deleting` for ever."""
    delete = ElastiCacheBackend.delete_replication_group

    def delete_replication_group(self: Any, replication_group_id: str, retain_primary_cluster: bool | None) -> Any:
        group = delete(self, replication_group_id, retain_primary_cluster)
        del self.replication_groups[replication_group_id]
        return group

    ElastiCacheBackend.delete_replication_group = delete_replication_group


_DELAY = "deregistration_delay.timeout_seconds"


def _allow_longest_delay() -> None:
    """moto takes 0 to 3599 s and says that it takes 3600, which AWS does."""
    modify = ELBv2Backend.modify_target_group_attributes

    def modify_target_group_attributes(self: Any, target_group_arn: str, attributes: dict[str, Any]) -> None:
        longest = attributes.get(_DELAY) == "3600"
        modify(self, target_group_arn, {**attributes, _DELAY: "3599"} if longest else attributes)
        if longest:
            self.target_groups[target_group_arn].attributes[_DELAY] = "3600"

    ELBv2Backend.modify_target_group_attributes = modify_target_group_attributes


def _end_machines() -> None:
    """moto gives a machine a default disk besides the template's, and an interface; both would outlive it."""
    terminate = Instance.terminate

    def terminate_whole(self: Any) -> Any:
        before = terminate(self)
        backend = self.ec2_backend
        for interface in self.nics.values():
            backend.enis.pop(interface.id, None)
        for volume in list(backend.volumes.values()):
            if volume.attachment and volume.attachment.instance.id == self.id:
                del backend.volumes[volume.id]
        return before

    Instance.terminate = terminate_whole


def _end_gateways() -> None:
    """Of a NAT gateway the interface would stay."""
    delete = EC2Backend.delete_nat_gateway

    def delete_nat_gateway(self: Any, nat_gateway_id: str) -> Any:
        gateway = delete(self, nat_gateway_id)
        self.enis.pop(gateway._eni.id, None)
        return gateway

    EC2Backend.delete_nat_gateway = delete_nat_gateway
