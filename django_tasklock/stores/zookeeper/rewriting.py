"""A lease in ZooKeeper goes on without its process, or in another one. For the worker threads.

A node of a lease without a process is persistent; every other one is ephemeral, and belongs to the
session of its process. No node can change that. So another node takes its place, with the same
sequence number: one transaction creates it and deletes the old one, and nobody gets the lock in
between. The record keeps the fence of the first node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, RolledBackError

from ..._values import clock
from ..._values.owner import HELD_BY, MARK
from ..base import Grant
from ..record import may_rewrite, new_record
from .leases import Taken
from .paths import next_generation
from .records import FENCE, LASTS, encoded
from .requests import Node, Requests
from .verbs import Verbs

__all__ = ["rewrite"]

_CHANGED = (BadVersionError, NoNodeError, NodeExistsError, RolledBackError)


def rewrite(
    verbs: Verbs,
    z: Requests,
    lock: str,
    token: str,
    ttl: float,
    owner: Mapping[str, Any],
    mark: str | None,
) -> Grant | None:
    """See `Rewriting.rewrite`. The lease is this process's responsibility then."""
    while True:
        asked, first = clock.now(), verbs.first(z, lock)
        lease = None if first is None else first.lease
        if lease is None or lease.record is None or lease.token != token or lease.waiting:
            return None
        new = new_record(token, owner, lease.record.at) | {LASTS: ttl, FENCE: lease.fence}
        # The record tells whether this very call was made before, and its reply was lost.
        if lease.fields != new and not may_rewrite(lease.record.owner, owner, mark):
            return None
        try:
            node = _replaced(
                z, lease.node, encoded(new), MARK not in owner and HELD_BY not in owner
            )
        except _CHANGED:
            z.assert_in_time(lock)
            continue
        if node is None:
            return None
        return verbs.granted(z, Taken(node.path, new, node.stat.version, asked + ttl), node.stat)


def _replaced(z: Requests, node: Node, data: bytes, ephemeral: bool) -> Node | None:
    """The node with other data, or another node instead of it; None if that is gone already."""
    client = z.client
    session = client.client_id[0] if ephemeral and client.client_id else 0
    if node.stat.ephemeralOwner == session:
        stat = z.got(client.set_async(node.path, data, node.stat.version))
        return node._replace(data=data, stat=stat)
    parent = node.path.rpartition("/")[0]
    path = f"{parent}/{next_generation(node.child)}"
    step = client.transaction()
    step.create(path, data, z.acl, ephemeral=ephemeral)
    step.delete(node.path, node.stat.version)
    failed = [each for each in z.got(step.commit_async()) if isinstance(each, Exception)]
    # What failed, if anything did, is said besides that the rest was rolled back.
    failed.sort(key=lambda error: isinstance(error, RolledBackError))
    if failed:
        raise failed[0]
    return z.node(path)
