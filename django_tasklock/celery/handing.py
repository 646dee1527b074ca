"""The lease of a caller goes on in the run: ``apply_async(..., lease=lease)``.

The lease is detached when ``apply_async`` of `LockedTask` is called, and not when the message is
sent: a mixin may send when the transaction commits, and the block that holds the lease may have
ended by then. The message carries the handle in its header.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from .._engine.causes import BY_WORKER
from .._engine.lease import Lease
from .._engine.renewal import renewal
from .._engine.use import Use
from .._values.handle import Handle, read_handle
from .._values.slots import base_of
from ..exceptions import StoreUnavailable
from .base import TaskBase
from .body import Body
from .claim import check_handing
from .delivery import Delivery
from .due import seconds_to_expiry, waiting_seconds
from .headers import LEASE

__all__ = [
    "adopted",
    "checked_handle",
    "clear_adopted",
    "detached",
    "end_detached",
    "handed_on",
    "handle_of",
]

START_SECONDS = 1.0
"""from a worker's look whether a message has expired until its run adopts the lease"""


def detached(task: TaskBase, options: dict[str, Any], args: Any, kwargs: Any) -> str | None:
    """Detach the lease among the options of a call, and put its handle there. Returns the handle;
    None if there is no lease, or a handle already.

    The handle lasts as long as the lease would from now on, and for the countdown or ETA besides,
    but not much longer than the message, which a broker may drop when it expires.

    Raises `TypeError` or `ValueError` for what is neither, or of another store, `LeaseLost`, and
    `StoreUnavailable`. ``args`` and ``kwargs`` are those of the call: see `checked_handle`.
    """
    lease = options.get(LEASE)
    if lease is None:
        return None
    if task.debounce is not None:
        raise ValueError(f"{task.name} has debounce: a call that is replaced would keep the lease")
    alias = lease.store if isinstance(lease, Lease) else read_handle(lease).alias
    if alias != task.lock_store:
        raise ValueError(
            f"the lease is of the store {alias!r}, and task {task.name} uses {task.lock_store!r}"
        )
    if not isinstance(lease, Lease):
        return None
    # Before it is detached: the message may be sent later, when nobody can hold it again.
    _check_row(task, lease.token, args or (), kwargs or {})
    expired = max(seconds_to_expiry(task, options), 0.0) + START_SECONDS
    ttl = min(lease.ttl + waiting_seconds(task, options), expired)
    options[LEASE] = handle = lease.detach(ttl)
    return handle


@contextmanager
def handed_on(task: TaskBase, options: dict[str, Any], args: Any, kwargs: Any) -> Iterator[None]:
    """Detach the lease among the options of a call for this block. If the block raises, the lease
    is held again, unless somebody has adopted it. See `detached`."""
    lease = options.get(LEASE)
    renew = isinstance(lease, Lease) and lease.renew
    handle = detached(task, options, args, kwargs)
    try:
        yield
    except BaseException:
        if handle is not None and isinstance(lease, Lease):
            with suppress(StoreUnavailable):
                task.locks.take_back(lease, handle, renew=renew)
        raise


def checked_handle(
    task: TaskBase, handle: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """Return ``handle``. Raises `ValueError` if its lease is of another lock than a call with these
    arguments takes, or of a run around this code that has not finished the row of the call."""
    said, name = read_handle(handle), task.lock_name_of(args, kwargs)
    slots = task.lock_slots_of(args, kwargs)
    if not _is_of(said, name, slots):
        takes = repr(name) if slots == 1 else f"a permit of {name!r}"
        raise ValueError(f"the lease is of the lock {said.name!r}, and this call takes {takes}")
    _check_row(task, said.token, args, kwargs)
    return str(handle)


def _is_of(said: Handle, name: str, slots: int) -> bool:
    """Whether the lease is what a call takes: the lock ``name``, or with slots a permit of it."""
    if slots == 1:
        return said.name == name
    return said.slots is not None and base_of(said.name, said.slots) == name


def _check_row(task: TaskBase, token: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    guard = task.guard
    check_handing(
        token, task.name, guard, lambda: guard and guard.pk_of(task.arguments_of(args, kwargs))
    )


def handle_of(ours: Any) -> Handle | None:
    """Return the handle in a message's own header; None if there is none, or it is wrong."""
    handle = ours.get(LEASE) if isinstance(ours, dict) else None
    if handle is None:
        return None
    try:
        return read_handle(handle)
    except (TypeError, ValueError):
        return None


def adopted(delivery: Delivery, name: str, use: Use, body: Body, *, slots: int = 1) -> Lease | None:
    """Adopt the lease that the message has the handle of. None if it has none, or the lease is
    over, or another run has claimed the row under it: the run acquires as usual then. Raises
    `StoreUnavailable`."""
    task, handle = delivery.task, handle_of(delivery.handed)
    if handle is None or handle.alias != task.lock_store or not _is_of(handle, name, slots):
        return None
    lease = task.locks.try_adopt(
        str(handle), use=use, renew=task.lock_renew, task=task.name, task_id=delivery.id
    )
    if lease is None:
        return None
    store, note, kept = task.locks.store, delivery.note_of_start(), False
    try:
        if body.was_claimed_under(lease):
            # That run may not have ended. A lease of this run's own has a later fence.
            use.leave(failed=True)
            return None
        if note is not None:
            kept = store.reserve(note.key, note.text, note.ttl) is not None
        if not task.lock_renew:
            # Nobody extends it, and it is as long as its caller needed it.
            ttl = store.settings.ttl if task.lock_ttl is None else task.lock_ttl
            if lease.ttl < ttl:
                lease.extend(ttl)
        delivery.started(kept=kept)
    except BaseException:
        if note is not None:
            # It may have been written, and the body does not begin. Before the release: the next
            # holder may read it.
            renewal.owe(name, note, lease.ttl, store, undo=True)
        use.drop()
        raise
    return lease


def end_detached(task: TaskBase, handle: str) -> None:
    """Release a detached lease, unless somebody has adopted it."""
    lease = task.locks.adopt(handle)
    if lease is not None:
        lease.release()


def clear_adopted(task: TaskBase, handle: Handle) -> None:
    """Clear a lease whose adopter is dead. Another run may have adopted it, which lives."""
    holder = task.locks.get(handle.name)
    if holder is not None and holder.token == handle.token and holder.owner.alive() is False:
        task.locks.clear(handle.name, handle.token, by=BY_WORKER)
