"""Several locks, all of them or none."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any

from .._values import clock
from .._values.arguments import checked_name, checked_several, checked_wait
from ..exceptions import LeaseLost, LockNotAcquired, StoreUnavailable
from .acquiring import Acquiring
from .all_at_once import AllAtOnce
from .keeper import Keeper
from .lease import Lease
from .renewal import renewal
from .steps import Pause, Steps, blocking, steps_of
from .store_renewal import RENEWAL_SHARE
from .use import Use

__all__ = ["AllOrNone", "leave_all", "take_all"]

FULL_SHARE = 0.95
"""a lease that has less than this share of its ttl left, when all are taken, is extended"""
ROUNDS_AT_ONCE = 4
"""how often in a row a lease may be lost while the caller takes the others, before it pauses"""
ROUND_PAUSE_SECONDS = 1.0
"""the pause before each further round: ttls may be too short for all to be held at once"""

Take = Callable[[str, Any, "float | None", AllAtOnce], Steps[Lease]]


def take_all(
    names: Sequence[str],
    take: Take,
    new_use: type[Use],
    wait: float | None,
    parts: builtins.list[Use],
    keeper: Keeper,
) -> Steps[builtins.list[Lease]]:
    """Take several locks. Return their leases in the order of ``names``.

    ``take(name, use, wait, together)`` makes the steps that take one of them, for a use that
    ``new_use`` makes. The first one may ask ``together`` for all of them. ``parts`` gets each use
    before its lock is taken; the caller drops them if this raises.

    They are taken in sorted order, so no two callers wait for each other. While the caller waits
    for one of them, the leases of the others are renewed, and in the end they are extended. If one
    is lost all the same, the others are released, and all are taken once more, until ``wait`` is
    over.

    Raises `LockNotAcquired` with the name that is held, after the others were released in reverse
    order, and what ``take`` raises.
    """
    for name in names:
        checked_name(name)
    wait = checked_wait(wait)
    deadline = None if wait is None else clock.now() + wait
    rounds = 0
    while True:
        rounds += 1
        lost = None
        leases: dict[str, Lease] = {}
        renewed: builtins.list[Lease] = []
        in_order = sorted(set(names))
        together = AllAtOnce(keeper.store, in_order)
        try:
            for name in in_order:
                if parts:
                    _renew_meanwhile(leases, parts, deadline, renewed, keeper)
                parts.append(new_use(None))
                left = None if deadline is None else max(0.0, deadline - clock.now())
                leases[name] = yield from take(name, parts[-1], left, together)
        except LockNotAcquired:
            # What cannot be released now is given up: the refusal is what is to be reported.
            parts.pop().drop()
            leave_all(parts)
            raise
        finally:
            together.drop()
        for lease in renewed:
            lease.renew = False
        for part, lease in zip(parts, leases.values(), strict=True):
            if not part.shared() and lease.remaining < lease.ttl * FULL_SHARE:
                lease.extend()
            if not lease.held:
                if part.shared():
                    lease.assert_held()
                lost = lease.name
        if lost is None:
            return [leases[name] for name in names]
        leave_all(parts)
        parts.clear()
        left = math.inf if deadline is None else deadline - clock.now()
        if left <= 0:
            raise LockNotAcquired(lost, keeper.store.get(lost))
        if rounds >= ROUNDS_AT_ONCE:
            yield Pause(min(left, ROUND_PAUSE_SECONDS))


def _renew_meanwhile(
    leases: dict[str, Lease],
    parts: builtins.list[Use],
    deadline: float | None,
    renewed: builtins.list[Lease],
    keeper: Keeper,
) -> None:
    """Have the last lease renewed, if the wait for the next lock may take so long."""
    part, lease = parts[-1], leases[next(reversed(leases))]
    if part.shared() or lease.renew:
        return
    if deadline is None or clock.now() + lease.remaining * RENEWAL_SHARE < deadline:
        renewed.append(lease)
        lease.renew = True
        renewal.add(lease, keeper.store)


def leave_all(
    parts: builtins.list[Use], *, failed: bool = False
) -> LeaseLost | StoreUnavailable | None:
    """Release what was taken, the last one first, whatever becomes of the others.

    Once the store has not answered, the rest is given up: each of them might wait as long. Returns
    the first `LeaseLost`, or else the `StoreUnavailable`; the caller drops the parts.
    ``failed``: the block raised an error.
    """
    lost: LeaseLost | None = None
    silent: StoreUnavailable | None = None
    for part in reversed(parts):
        if silent is not None:
            part.note_end(failed=failed)
            part.drop()
            continue
        try:
            part.leave(failed=failed, quiet=False)
        except LeaseLost as error:
            lost = lost or error
        except StoreUnavailable as error:
            silent = error
    return lost or silent


class _Taken(Use):
    """A use of `AllOrNone.acquire_all`, whose leases belong to the caller in the end."""

    def __del__(self) -> None:
        pass


class AllOrNone(Acquiring):
    """The verb of `LockService` that takes several locks."""

    def acquire_all(
        self,
        names: builtins.list[str] | tuple[str, ...],
        *,
        ttl: float | None = None,
        wait: float | None = 0,
        renew: bool = False,
    ) -> builtins.list[Lease] | None:
        """Take several locks, all or none. Returns their leases in the order of ``names``.

        Returns None if one of the locks is still held after ``wait``; then none is taken. A name
        that comes twice has one lease, which the list has twice. ``ttl`` and ``renew``: as for
        `acquire`. Each lease has its ttl before it when this returns. ``wait``: seconds to wait for
        all of them together.
        """
        parts: builtins.list[Use] = []
        try:
            return blocking(self._taking_all(names, parts, wait, ttl=ttl, renew=renew))
        except BaseException as error:
            for part in reversed(parts):
                part.drop()
            if isinstance(error, LockNotAcquired):
                return None
            raise

    def _taking_all(
        self,
        names: builtins.list[str] | tuple[str, ...],
        parts: builtins.list[Use],
        wait: float | None = 0,
        **options: Any,
    ) -> Steps[builtins.list[Lease]]:
        """`take_all`, with the options of `acquire`. Raises `LockNotAcquired`."""
        checked_several(names)
        trying = steps_of(self.try_acquire)

        def take(name: str, use: Use, left: float | None, together: AllAtOnce) -> Steps[Lease]:
            won = yield from trying(name, wait=left, use=use, together=together, **options)
            if isinstance(won, Lease):
                return won
            raise LockNotAcquired(name, won)

        return take_all(names, take, _Taken, wait, parts, self)
