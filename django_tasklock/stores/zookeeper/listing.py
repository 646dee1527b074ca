"""What locks there are. For the worker threads."""

from __future__ import annotations

from collections.abc import Iterator

from kazoo.exceptions import NoNodeError

from ..._values.lock_info import LockInfo
from .paths import name_of
from .records import Lease
from .requests import PIPELINED, Requests
from .verbs import First, Verbs

__all__ = ["head_of", "infos_of", "names_below"]


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

    Two reads for each, and one more where somebody waits, of which many are sent before the first
    is answered.
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
        waited_for = [(name, children[1]) for name, children in found if len(children) > 1]
        firsts = [(name, children[0]) for name, children in found]
        read = z.nodes([f"{keys[name]}/{child}" for name, child in (*firsts, *waited_for)])
        heads = {node.path: Lease(node) for node in read[len(firsts) :] if node is not None}
        for (name, children), node in zip(found, read[: len(firsts)], strict=True):
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
                head = heads.get(f"{keys[name]}/{first.children[1]}") if waiters else None
                yield name, first.lease.info(name, store, keys[name], first.left, waiters, head)


def head_of(z: Requests, key: str, children: list[str]) -> Lease | None:
    """The next waiter of a lock with these children; None if nobody waits any more."""
    node = z.node(f"{key}/{children[1]}") if len(children) > 1 else None
    return None if node is None else Lease(node)
