"""Deadlocks: one thread waits for a lock whose holder waits, in the end, for a lock of its own.

Known from what owners record of themselves. Who holds and who waits is compared by process (boot
id, pid namespace, pid, start) and thread, greenlet or asyncio task. Owners of which one of these is
not recorded are left out, and so are keys of other code, operators, and leases without a process:
nobody can say for what these wait. A lock with ``slots`` is left out as well: each of its holders
may be the one to release.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from .._values.describe import duration, place, printable
from .._values.keyed import key_of
from .._values.liveness import Liveness
from .._values.lock_info import LockInfo
from .._values.owner import Owner, task_words
from ..exceptions import ListingNotSupported, StoreUnavailable
from ..stores import stores
from ..stores.criteria import Criteria
from .hints import command_line
from .problems import Problem
from .wording import DEADLOCK, DEADLOCK_WITHOUT_END, NOT_ALL_WAITS, SELF_DEADLOCK

__all__ = ["Wait", "cycles_of", "deadlocks"]

MOST_LOCKS = 1000
"""locks of a store whose wait queues are read, each in a round trip: those with the most waiters"""
MOST_WAITERS = 10_000
"""waiters of a store that are read"""
PAUSE_SECONDS = 0.1
"""pause between the two looks that must find the same"""
Who = tuple[object, ...]
"""identifies a thread, greenlet or asyncio task of one process"""


class Wait(NamedTuple):
    """One who waits, and the lock that it waits for."""

    waiter: Owner
    info: LockInfo


def deadlocks(aliases: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each deadlock between locks of these stores, and a note for a store with
    too many locks that are waited for.

    A deadlock is found if two looks find the same leases and waiters. Raises `StoreUnavailable`, if
    a store did not answer: after the deadlocks of the others.
    """
    infos: list[LockInfo] = []
    silent: StoreUnavailable | None = None
    for alias in aliases:
        try:
            found, more = stores[alias].search(Criteria(), "-waiters", MOST_LOCKS)
        except ListingNotSupported:
            continue  # The look at the store's locks reports it.
        except StoreUnavailable as error:
            silent = silent or error
            continue
        waited_for = [info for info in found if info.waiters]
        infos += waited_for
        many = sum(info.waiters or 0 for info in waited_for) > MOST_WAITERS
        if many or (more and len(waited_for) == MOST_LOCKS):
            values = {"locks": MOST_LOCKS, "waiters": MOST_WAITERS}
            yield Problem.worded(
                "deadlock", alias, NOT_ALL_WAITS, values, serious=False, store=alias
            )
    cycles = cycles_of(_waits(infos))
    if cycles:
        time.sleep(PAUSE_SECONDS)
        again = {_proof(wait) for wait in _waits(_still([w.info for c in cycles for w in c]))}
        for cycle in cycles:
            if again.issuperset(map(_proof, cycle)):
                yield _problem(cycle)
    if silent is not None:
        raise silent


def cycles_of(waits: Iterable[Wait]) -> list[list[Wait]]:
    """Return cycles of waits, of which each one's waiter holds the lock of the one before it.

    Of cycles that share waits only some are returned. The others end with those, or are found by
    the next look.
    Each begins with the lock that comes first by store and name.
    """
    found: list[list[Wait]] = []
    following: dict[Who, list[Wait]] = {}
    for wait in waits:
        following.setdefault(_who(wait.waiter), []).append(wait)
    done: set[Who] = set()
    for start in following:
        if start in done:
            continue
        # The waits from ``start`` to the last of ``on_path``, and what each of those waits for.
        path: list[Wait] = []
        on_path: list[Who] = [start]
        rest = [iter(following[start])]
        while rest:
            try:
                wait = next(rest[-1])
            except StopIteration:
                done.add(on_path.pop())
                rest.pop()
                if path:
                    path.pop()
                continue
            holder = _who(wait.info.owner)
            if holder in on_path:
                found.append(_turned([*path[on_path.index(holder) :], wait]))
            elif holder in following and holder not in done:
                path.append(wait)
                on_path.append(holder)
                rest.append(iter(following[holder]))
            else:
                done.add(holder)
    return found


def _turned(cycle: list[Wait]) -> list[Wait]:
    first = min(range(len(cycle)), key=lambda at: (cycle[at].info.store, cycle[at].info.name))
    return cycle[first:] + cycle[:first]


def _waits(infos: Iterable[LockInfo]) -> Iterator[Wait]:
    """Who waits for these locks, whose holder is a thread that may wait itself."""
    liveness, left = Liveness(), dict.fromkeys(stores, MOST_WAITERS)
    for info in infos:
        if left[info.store] > 0 and _may_wait(info.owner, liveness):
            waiters = stores[info.store].waiters(info.name, left[info.store])
            left[info.store] -= len(waiters)
            yield from (Wait(waiter, info) for waiter in waiters if _may_wait(waiter, liveness))


def _may_wait(owner: Owner, liveness: Liveness) -> bool:
    known = None not in _who(owner)
    single = owner.slots is None and owner.waits_for is None
    return known and single and owner.mark is None and not liveness.is_gone(owner)


def _who(owner: Owner) -> Who:
    return owner.boot, owner.pidns, owner.pid, owner.start, owner.thread


def _still(infos: Sequence[LockInfo]) -> Iterator[LockInfo]:
    """The same locks as they are held now."""
    names: dict[str, dict[str, str]] = {}
    for info in infos:
        names.setdefault(info.store, {})[key_of(info.name)] = info.name
    for alias, some in names.items():
        yield from (info for info in stores[alias].get_many([*some.values()]) if info is not None)


def _proof(wait: Wait) -> tuple[object, ...]:
    return _who(wait.waiter), wait.info.store, wait.info.name, wait.info.token


def _problem(cycle: Sequence[Wait]) -> Problem:
    info = cycle[0].info
    left = min((wait.info.ttl for wait in cycle if wait.info.ttl is not None), default=None)
    values = {
        "parts": [_part(wait) for wait in cycle],
        "command": command_line("clear", info.name, store=info.store),
        "left": None if left is None else duration(left),
    }
    alone = SELF_DEADLOCK if len(cycle) == 1 else DEADLOCK
    wording = DEADLOCK_WITHOUT_END if left is None else alone
    return Problem.worded(
        "deadlock", info.name, wording, values, store=info.store, lock=info.name, info=info
    )


def _part(wait: Wait) -> Mapping[str, str]:
    info = wait.info
    return {
        "waiter": _words(wait.waiter),
        "lock": printable(info.name),
        "holder": _words(info.owner),
    }


def _words(owner: Owner) -> str:
    task = task_words(owner)
    return printable(f"{place(owner)} ({owner.thread}{f', {task}' if task else ''})")
