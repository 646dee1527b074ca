"""What locks there are. For the worker threads."""

from __future__ import annotations

from collections.abc import Iterator

from kazoo.exceptions import NoNodeError

from ..._values.lock_info import LockInfo
from .paths import name_of
from .records import Lease
from .requests import PIPELINED, Requests
from .verbs import First, Verbs

__all__ = ["infos_of", "names_below"]


def names_below(z: Requests, prefix: str) -> list[str]:
    """The names of the locks that are held, or were until a moment ago."""
    z.client.sync_async(z.prefix)
    try:
        nodes = z.got(z.client.get_children_async(z.prefix))
    except NoNodeError:
        return []
    names = (name_of(node) for node in nodes)
    return [name for name in names if name is not None and name.startswith(prefix)]


def infos_of(
    z: Requests, verbs: Verbs, keys: dict[str, str], store: str
) -> Iterator[tuple[str, LockInfo]]:
    """What holds each of some locks, of those that are held. ``keys`` are their paths, by name.

    Two reads for each, of which many are sent before the first is answered.
    """
    names = list(keys)
    for start in range(0, len(names), PIPELINED):
        batch = names[start : start + PIPELINED]
        found = [
            (name, children)
            for name, children in zip(
                batch, z.children_of_each([keys[name] for name in batch]), strict=True
            )
            if children
        ]
        nodes = z.nodes([f"{keys[name]}/{children[0]}" for name, children in found])
        for (name, children), node in zip(found, nodes, strict=True):
            first: First | None
            if node is None:
                # It went, and somebody else may hold the lock now.
                first = verbs.first(z, keys[name])
            else:
                first = verbs.judged(z, keys[name], Lease(node), children)
                if first.at_most is not None and first.at_most <= 0:
                    first = verbs.first(z, keys[name])
            if first is not None:
                waiters = len(first.children) - 1
                yield name, first.lease.info(name, store, keys[name], first.left, waiters)
