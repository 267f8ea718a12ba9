"""Operations that moto's APIs lack: EC2's placement groups, kept per account and region, and the delete of a cache's subnets."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.responses import EC2Response
from moto.elasticache.responses import ElastiCacheResponse
from moto.moto_api._internal import mock_random

_groups: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}


def install() -> None:
    for operation in (create_placement_group, describe_placement_groups, delete_placement_group):
        setattr(EC2Response, operation.__name__, operation)
    ElastiCacheResponse.delete_cache_subnet_group = delete_cache_subnet_group


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
