"""A lease goes on without its process, and then in another one.

To detach a lease is to write a new version of its record, with a mark: no process has to live for
it any more. Whoever adopts it expects that very version and replaces it, in one step, so of several
one does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._values import clock
from .._values.handle import Handle, new_mark
from .._values.owner import MARK
from .._values.tokens import new_token
from ..stores.base import BaseStore, Grant
from ..stores.records import Held
from .keeper import Entry

__all__ = ["adopt", "check", "detach"]


def check(store: BaseStore, ttl: float) -> None:
    """Raise `ValueError` if no lease lasts for ``ttl`` seconds in the store."""
    if store.longest_ttl is not None and ttl > store.longest_ttl:
        raise ValueError(
            f"the lock store {store.alias!r} keeps a lease for {store.longest_ttl:g} s at most "
            f"(LONGEST_TTL), not for {ttl:g} s"
        )


def detach(store: BaseStore, entry: Entry, fence: int | None, ttl: float) -> str | None:
    """Have the lease go on for ``ttl`` seconds. Returns the handle; None if it was lost.

    Raises `StoreUnavailable`.
    """
    record = entry.record
    handle = Handle(
        store.alias, entry.name, entry.token, fence, new_mark(), float(entry.ttl),
        record.get("slots"),
    )  # fmt: skip
    # Until then it may be in the store, if it has to be given up.
    entry.until = max(entry.until, clock.now() + ttl)
    marked = {**record, "ttl": ttl, "renew": False, MARK: handle.mark}
    rewritten = store.rewrite(entry.name, Held(entry.token), ttl, marked, handle.mark)
    return None if rewritten is None else str(handle)


def adopt(
    store: BaseStore, said: Handle, owner: Mapping[str, Any], renew: bool
) -> tuple[Grant, dict[str, Any], float] | None:
    """Take a detached lease. Returns the grant, the record of the adopter, and when the lease ends,
    on `clock.now`; None if it is over, or somebody has adopted it.

    ``owner`` is the adopter's record. Raises `StoreUnavailable`.
    """
    record = {**owner, "ttl": said.ttl, "renew": renew}
    if said.slots is not None:
        record["slots"] = said.slots
    asked = clock.now()
    held = Held(said.token, said.mark)
    grant = store.rewrite(said.name, held, said.ttl, record, new_token())
    if grant is None or clock.now() >= asked + said.ttl:
        return None
    return grant, record, asked + said.ttl
