"""What it means to clear a lock: who would notice, by when, and who takes the lock next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from .._engine.store_renewal import RENEWAL_SHARE
from .._values.keyed import key_of
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from .._values.slots import base_of, gate_name
from ..stores import stores

__all__ = ["Holder", "Meaning", "Notice", "meanings"]


class Holder(Enum):
    """What is known of a lock's holder. `SAFE` are those beside which no other run can overlap."""

    ALIVE = "alive"
    GONE = "gone"
    GONE_WITH_CHILDREN = "gone, its subprocesses not known"
    NOT_KNOWN = "not known"
    COOLING = "cooling"
    DETACHED = "detached"
    OPERATOR = "operator"
    OTHER_CODE = "other code"


SAFE = frozenset({Holder.GONE, Holder.COOLING})


class Notice(Enum):
    """How a holder notices that its lease was cleared."""

    RENEWAL = "at its next renewal"
    END = "at its end"
    PERHAPS = "at its deadline, or earlier"
    NEVER = "never"
    NOBODY = "nobody is there"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What it means to clear one lock, as the store and this machine know it now.

    ``notice`` says how the holder notices, and ``seconds`` how many seconds after the clear at the
    latest, while its process is not stopped; None where there is no such time. ``waiting`` is how
    many wait for the lock, None where that is not known, and ``next`` is the first of them.
    """

    holder: Holder
    notice: Notice
    seconds: float | None = None
    waiting: int | None = None
    next: Owner | None = None

    @property
    def safe(self) -> bool:
        """Whether no other run can overlap with one that takes the lock after the clear."""
        return self.holder in SAFE


def meanings(infos: Sequence[LockInfo]) -> list[Meaning]:
    """Return what it means to clear each of some locks, of any stores.

    Costs at most three round trips for hundreds of locks of a store that can answer for many at
    once. Raises `StoreUnavailable`.
    """
    found: dict[int, Meaning] = {}
    by_store: dict[str, list[int]] = {}
    for at, info in enumerate(infos):
        by_store.setdefault(info.store, []).append(at)
    for alias, places in by_store.items():
        some = [infos[at] for at in places]
        queues = _queues(alias, some)
        for at, info in zip(places, some, strict=True):
            holder = _holder(info, takeover=stores[alias].takeover)
            found[at] = Meaning(holder, *_notice(info, holder), *queues[key_of(info.name)])
    return [found[at] for at in range(len(infos))]


def _holder(info: LockInfo, *, takeover: bool) -> Holder:
    if info.token is None:
        return Holder.OTHER_CODE
    if info.held_by is not None:
        return Holder.OPERATOR
    if info.cooling:
        return Holder.COOLING
    if info.detached:
        return Holder.DETACHED
    alive = info.owner.alive()
    if alive is None:
        return Holder.NOT_KNOWN
    if alive:
        return Holder.ALIVE
    # Without takeover the site says that its work leaves subprocesses behind.
    return Holder.GONE if takeover else Holder.GONE_WITH_CHILDREN


def _notice(info: LockInfo, holder: Holder) -> tuple[Notice, float | None]:
    if holder is Holder.OTHER_CODE:
        return Notice.NEVER, None
    if holder not in (Holder.ALIVE, Holder.NOT_KNOWN) or info.ttl is None:
        return Notice.NOBODY, None
    if info.renewing is None:
        return Notice.PERHAPS, info.ttl
    if not info.renewing:
        return Notice.END, info.ttl
    if info.granted is None or info.ttl > info.granted:
        # It was extended by more than its ttl, by how much is not known.
        return Notice.PERHAPS, info.ttl
    # The renewal asks again after this share of what is left, and sooner after a failed call. At
    # the deadline the lease is over by the holder's own clock.
    return Notice.RENEWAL, min(info.ttl, info.granted * RENEWAL_SHARE)


def _queues(alias: str, infos: Sequence[LockInfo]) -> dict[str, tuple[int | None, Owner | None]]:
    """How many wait for each lock, and who is the first. Those who wait for a permit wait at the
    gate of its name, and who holds the gate is the first of them."""
    store = stores[alias]
    gates = {
        info.name: gate_name(base_of(info.name, info.owner.slots))
        for info in infos
        if info.slot is not None
    }
    names = list(dict.fromkeys(gates.values()))
    holders = dict(zip(names, store.get_many(names), strict=True)) if names else {}
    waited_for = [info.name for info in infos if info.name not in gates and info.waiters]
    first = (
        dict(zip(map(key_of, waited_for), store.next_waiters(waited_for), strict=True))
        if waited_for
        else {}
    )
    queues: dict[str, tuple[int | None, Owner | None]] = {}
    for info in infos:
        if info.name not in gates:
            queues[key_of(info.name)] = info.waiters, first.get(key_of(info.name))
        elif (gate := holders[gates[info.name]]) is None:
            queues[key_of(info.name)] = 0, None
        else:
            count = None if gate.waiters is None else 1 + gate.waiters
            queues[key_of(info.name)] = count, gate.owner
    return queues
