"""The handle store that several routers share."""

from __future__ import annotations

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_elasticache as elasticache
from constructs import Construct

from stacks.network import VALKEY_PORT

NODES = 2


class Valkey(Construct):
    """Two small nodes in two zones. What they hold is worth one recomputed prompt a conversation: no backups."""

    def __init__(self, scope: Construct, construct_id: str, *, name: str, subnets: Sequence[str], group: str) -> None:
        super().__init__(scope, construct_id)
        subnet_group = elasticache.CfnSubnetGroup(
            self, "Subnets", description=f"{name}: handle store", subnet_ids=list(subnets)
        )
        self.cluster = elasticache.CfnReplicationGroup(
            self,
            "Cluster",
            replication_group_description=f"{name}: handles of conversations",
            engine="valkey",
            engine_version="8.0",
            cache_node_type="cache.t4g.small",
            num_cache_clusters=NODES,
            automatic_failover_enabled=True,
            multi_az_enabled=True,
            at_rest_encryption_enabled=True,
            transit_encryption_enabled=True,
            transit_encryption_mode="required",
            port=VALKEY_PORT,
            cache_subnet_group_name=subnet_group.ref,
            security_group_ids=[group],
            snapshot_retention_limit=0,
        )

    @property
    def endpoint(self) -> str:
        """host:port, known at deployment."""
        return cdk.Fn.join(":", [self.cluster.attr_primary_end_point_address, str(VALKEY_PORT)])
