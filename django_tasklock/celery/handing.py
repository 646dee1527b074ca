"""The lease of a caller goes on in the run: ``apply_async(..., lease=lease)``.

The lease is detached when it is sent, and the message carries the handle in its header.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

from .._engine.lease import Lease
from .._values.arguments import base_of
from .._values.lock_info import LockInfo
from .._values.tokens import read_handle
from ..exceptions import StoreUnavailable
from .call import LEASE, Call, Send, waiting_seconds
from .options import TaskOptions
from .requeue import come_back
from .row import Unleased
from .run import Run, Step, runs

# From a worker's look whether a message has expired until its run adopts the lease.
START_SECONDS = 1.0


class Handing(Step):
    """Sends the caller's lease along, and adopts it instead of acquiring."""

    def send(self, call: Call, go: Send) -> Any:
        """Detach the lease among the options. If nothing is sent, it is held again. A run without
        the lock has none to hand on: the call acquires as usual.

        Raises `LeaseLost`, and `TypeError` or `ValueError` as `detached` does.
        """
        lease, task = call.options.pop(LEASE, None), call.task
        if lease is None or isinstance(lease, Unleased):
            return go()
        renew = isinstance(lease, Lease) and lease.renew
        handle = detached(call, lease)
        call.note(**{LEASE: handle})
        try:
            sent = go()
        except BaseException:
            if isinstance(lease, Lease):
                with suppress(StoreUnavailable):
                    task.locks.adopt_again(lease, handle, renew=renew)
            raise
        if not call.eager and sent.id != call.id:
            # A duplicate: the message that is in the queue takes the lock itself.
            with suppress(StoreUnavailable):
                end_detached(task, handle)
        return sent

    def adopt(self, run: Run) -> Lease | None:
        """Adopt the lease that the message brings. None if it brings none, or the lease is over:
        the run acquires as usual then. Raises `StoreUnavailable`."""
        message, task, handle = run.message, run.task, run.message.handle
        if handle is None or handle.alias != task.lock_store:
            return None
        if not _is_of(handle.name, handle.slots, message.name, message.named.slots):
            return None
        owner, template = run.use.record(), task.naming.template
        lease = task.locks.try_adopt(str(handle), run.use, owner, task.how(), template)
        ttl = task.locks.store.settings.ttl if task.lock_ttl is None else task.lock_ttl
        if lease is not None and not task.lock_renew and lease.ttl < ttl:
            lease.extend(ttl)  # Nobody renews it, and it is as long as its caller needed it.
        return cast("Lease | None", lease)

    def refused(self, run: Run, holder: LockInfo) -> None:
        """Requeue a message that is refused by its own lease, which it could not adopt: as after a
        change of the cache's serializer. Where a later version has written the handle, any detached
        lease may be its own."""
        message, handle = run.message, run.message.handle
        own = holder.detached if handle is None else holder.token == handle.token
        if own and message.queued and message.ours.get(LEASE):
            come_back(message, holder.ttl)


def detached(call: Call, lease: Any) -> str:
    """Detach the ``lease`` that a call was given. Returns the handle, which may be there already.

    The handle lasts as long as the lease would from now on, and for the countdown or ETA besides.
    It does not last much longer than the message, which a broker may drop when it expires.

    Raises `LeaseLost` and `StoreUnavailable`. Raises `TypeError` or `ValueError` for what is no
    lease, for a lease of another lock or store, and for a lease under which a run finishes a row.
    """
    task = call.task
    own = isinstance(lease, Lease)
    said: Any = lease if own else read_handle(lease)
    alias, slots = said.store if own else said.alias, call.named.slots
    for run in runs.get():
        if run.row.key and not run.row.replaced and run.lease.token == said.token:
            raise ValueError(
                f"this run finishes the row {run.row} under the lease when its body has returned: "
                f"{task.name} cannot go on under it. Send it in a chain, without the lease"
            )
    if task.debounce is not None or task.conflict.replaces:
        raise ValueError(
            f"{task.name} has debounce or replaces: one replaced would keep the lease. Leave it out"
        )
    if alias != task.lock_store:
        raise ValueError(
            f"the lease is of the store {alias!r}, and {task.name} uses {task.lock_store!r}. "
            f"Acquire it with locks.using({task.lock_store!r})"
        )
    if not _is_of(said.name, said.owner.slots if own else said.slots, call.name, slots):
        takes = repr(call.name) if slots == 1 else f"a permit of {call.name!r}"
        raise ValueError(
            f"the lease is of the lock {said.name!r}, and this call takes {takes}. "
            "Acquire that one, or leave the lease out"
        )
    if not isinstance(lease, Lease):
        return str(lease)
    expired = max(call.seconds_to_expiry(), 0.0) + START_SECONDS
    return lease.detach(min(lease.ttl + waiting_seconds(task, call.options), expired))


def end_detached(task: TaskOptions, handle: str) -> None:
    """Release a detached lease, unless somebody has adopted it."""
    if (lease := task.locks.adopt(handle)) is not None:
        lease.release()


def _is_of(held: str, permits: int | None, name: str, slots: int) -> bool:
    """Whether the lock that is held is what a call takes: ``name``, or with slots a permit of it.
    ``permits``: of how many permits it is one; None if it is none."""
    return held == name if slots == 1 else permits is not None and base_of(held, permits) == name
