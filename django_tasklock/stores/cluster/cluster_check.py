"""What an operator should know of a cluster that keeps locks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..base import Finding
from ..redis.server import TRY_TELL, findings, next_fence
from .buckets import BUCKETS, ClusterKeyspace
from .nodes import Node
from .shard_subscriber import ShardSubscriber
from .topology import Topology

__all__ = ["cluster_findings", "greatest_next_fence"]


def cluster_findings(
    topology: Topology, needed: int, keyspace: ClusterKeyspace
) -> Iterator[Finding]:
    """Ask every master, and yield what an operator should know of it, with its address.

    ``needed`` is how many replicas must have a lease before it counts. Raises `StoreUnavailable`,
    also if no node serves one of the slots.
    """
    together: dict[Finding, list[Node]] = {}
    topology.refresh(at_once=True)
    masters = {topology.node(bucket): keyspace.buckets[bucket] for bucket in range(BUCKETS)}
    for node, keys in masters.items():
        subscriber = ShardSubscriber(node.client, lambda: None)
        found = findings(node.client, needed, keys, subscriber, TRY_TELL.sharded)
        for finding in (*found, *_of_cluster(node)):
            together.setdefault(finding, []).append(node)
    for finding, nodes in together.items():
        if len(nodes) == len(masters):
            yield replace(finding, message=f"of every master: {finding.message}")
        else:
            where = ", ".join(str(node.address) for node in nodes)
            yield replace(finding, message=f"{where}: {finding.message}")


def greatest_next_fence(topology: Topology, keyspace: ClusterKeyspace) -> int:
    """The greatest fence that a lease of any lock would have now. Raises `StoreUnavailable`."""
    return max(
        next_fence(topology.node(bucket).client, keyspace.buckets[bucket].fences)
        for bucket in range(BUCKETS)
    )


def _of_cluster(node: Node) -> Iterator[Finding]:
    lines = node.client.ask("CLUSTER", (), "INFO").decode("utf-8", "replace").splitlines()
    info = dict(line.split(":", 1) for line in lines if ":" in line)
    if info.get("cluster_state", "ok").strip() != "ok":
        yield Finding(
            "cluster_state",
            True,
            f"the cluster is not ok: {info.get('cluster_slots_ok', '?')} of 16384 slots are served",
            "See CLUSTER NODES. Locks in other slots are unavailable.",
        )
    replication = node.client.ask("INFO", (), "replication").decode("utf-8", "replace")
    if "connected_slaves:0" in replication:
        yield Finding(
            "no_replica",
            False,
            "it has no replica: while it is down, its locks are unavailable",
            "Give each master a replica (CLUSTER REPLICATE).",
        )
