"""A lease goes on without its process, and then in another one.

`Lease.detach` marks the lease in the store: no process has to live for it any more. Whoever adopts
it expects that very mark and replaces it, in one step, so of several one does. The record that the
adopter writes has a random part too. A call that is made again after a lost reply finds its own
record, and another caller's record is never taken for it.

The adopter's record counts the adoptions of the lease. A store that did not keep the mark has an
older record, and not that of another adopter: the count tells them apart.
"""

from __future__ import annotations

import os
from typing import Any

from .._values import clock
from .._values.arguments import checked_flag, checked_ttl
from .._values.handle import Handle, new_mark, read_handle
from .._values.owner_record import ADOPTIONS, MARK
from .._values.tokens import new_token
from ..exceptions import InvalidLockConfig, LeaseLost, StoreUnavailable
from ..stores.base import BaseStore
from .extensions import await_extensions
from .history import note_event
from .keeper import Keeper
from .lease import Lease
from .lease_state import DETACHED, DETACHING
from .renewal import renewal
from .running import record_here
from .use import Use

__all__ = ["HandingOn"]

MOST_UNANSWERED = 1000
"""calls of `adopt` without an answer that a process keeps in mind"""

_unanswered: dict[str, dict[str, Any]] = {}
"""the records of calls of `adopt` without an answer, by the mark: the next call asks the same"""


class HandingOn(Keeper):
    """The part of `LockService` that detaches and adopts leases."""

    alias: str
    """the store's alias"""

    def using(self, alias: str) -> Any:
        """Return the service of another store."""
        raise NotImplementedError

    def detach(self, lease: Lease, ttl: float | None) -> str:
        """`Lease.detach`. The lease is in the state `DETACHING` if it is interrupted."""
        ttl = lease.ttl if ttl is None else checked_ttl(ttl)
        store = _able(self.store)
        if store.longest_ttl is not None and ttl > store.longest_ttl:
            raise ValueError(
                f"the lock store {store.alias!r} keeps a lease for {store.longest_ttl:g} s at most "
                f"(LONGEST_TTL), not for {ttl:g} s"
            )
        if not lease.held or not lease._end(DETACHING):
            raise LeaseLost(lease.name, lease._reason or lease._why())
        lease.renew = False
        if not await_extensions(lease, lease._deadline):
            raise StoreUnavailable(lease.store, "it does not answer an extension of the lease")
        handle = Handle(
            lease.store, lease.name, lease.token, lease.fence, new_mark(), float(lease.ttl),
            lease._record.get("slots"), lease._record.get(ADOPTIONS, 0),
        )  # fmt: skip
        record = {**lease._record, "ttl": ttl, "renew": False, MARK: handle.mark}
        # Until then it may be in the store, if it has to be given up.
        lease._deadline = max(lease._deadline, clock.now() + ttl)
        if store.rewrite(lease.name, lease.token, ttl, record, None, lease._proof) is None:
            lease._hold_on()
            self.lost(lease, "the store no longer had it when it was detached")
            raise LeaseLost(lease.name, lease._reason)
        return str(handle)

    def take_back(self, lease: Lease, handle: str, *, renew: bool) -> bool:
        """Hold a lease again that this process has detached. Returns False if it cannot: somebody
        has adopted it, or it is over. Raises `StoreUnavailable`."""
        if lease._state != DETACHED or not lease._is_mine():
            return False
        store, asked, ttl = self.store, clock.now(), lease.ttl
        said = read_handle(handle)
        record = {**lease._record, **_adoption(said), "ttl": ttl, "renew": renew}
        grant = store.rewrite(lease.name, lease.token, ttl, record, said.mark)
        if grant is None or clock.now() >= asked + ttl:
            return False
        lease._record, lease._proof, lease._left_in_store = record, grant.proof, grant.left
        lease._deadline, lease.renew = asked + ttl, renew
        lease._hold_on()
        if renew:
            renewal.add(lease, store)
        return True

    def adopt(self, handle: str, renew: bool = False) -> Lease | None:
        """Go on under a lease that `Lease.detach` has handed on, perhaps in another process.

        Returns a lease with the same token and fence, held by this process; None if the lease is
        over, or somebody has adopted it: of several callers with one handle, one gets the lease. It
        lasts as long as the lease that was detached, counted from now. ``renew``: extend it, as for
        `acquire`. The handle says which store it is; no `lock_acquired` is sent, since the lock was
        acquired once.

        A handle is no secret, and no proof of a right: whoever has it can adopt the lease.

        Raises `TypeError` or `ValueError` if ``handle`` is no handle, `InvalidLockConfig` for the
        alias of an unknown store, and `StoreUnavailable`. After that the lease may be adopted
        without anybody who knows; it ends with its ttl then, and a further call in this process
        gets it.
        """
        use = Use(None)
        self.try_adopt(handle, renew=renew, use=use)
        lease, use.lease = use.lease, None
        return lease

    def try_adopt(
        self,
        handle: str,
        *,
        use: Use,
        renew: bool = False,
        task: str | None = None,
        task_id: str | None = None,
    ) -> Lease | None:
        """As `adopt`; ``task`` and ``task_id`` are recorded. ``use`` gets the lease as soon as
        there is one."""
        said = read_handle(handle)
        checked_flag("renew", renew)
        service = self if said.alias == self.alias else self.using(said.alias)
        store = _able(service.store)
        if renew:
            renewal.start(store, said.name)
        record = _unanswered.pop(said.mark, None)
        if record is None:
            record = {**record_here(task, task_id), **_adoption(said)}
            record |= {"ttl": said.ttl, "renew": renew}
            if said.slots is not None:
                record["slots"] = said.slots
        asked, answered = clock.now(), False
        try:
            grant = store.rewrite(said.name, said.token, said.ttl, record, said.mark)
            answered = True
        finally:
            # Not released: another process may have adopted the lease, which has the same token.
            if not answered and len(_unanswered) < MOST_UNANSWERED:
                _unanswered[said.mark] = record
        if grant is None or clock.now() >= asked + said.ttl:
            return None
        fence = said.fence if grant.fence is None else grant.fence
        use.lease = lease = Lease(
            service, said.alias, said.name, said.token, fence, said.ttl, asked + said.ttl, record,
            grant.proof, renew, grant.left,
        )  # fmt: skip
        lease.template = use.template
        try:
            if renew:
                renewal.add(lease, store)
            note_event(store.alias, "adopted", said.name, record)
        except BaseException:
            service.give_up(lease)
            raise
        return lease


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unanswered.clear)


def _adoption(said: Handle) -> dict[str, Any]:
    """The fields of one adoption, which no other one has."""
    return {"adopted": new_token(), ADOPTIONS: said.adoptions + 1}


def _able(store: BaseStore) -> BaseStore:
    """Return ``store``. Raises `InvalidLockConfig` if no lease of it can be handed on."""
    if not store.supports_rewrite:
        raise InvalidLockConfig(
            f"leases of the lock store {store.alias!r} cannot be detached: a "
            f"{type(store).__name__} does not have supports_rewrite"
        )
    return store
