"""``lead()``: of all processes that call it, one runs; another one takes over."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction

from ._engine.lease import Lease
from ._engine.service import LockService
from ._engine.use import Use, log_not_released
from ._values.arguments import checked_name, checked_ttl
from ._values.describe import printable
from ._values.signatures import is_generator, signature_of
from .conf import DEFAULT_ALIAS
from .exceptions import LeaseLost, StoreUnavailable

__all__ = ["lead", "wait_to_lead"]

logger = logging.getLogger("django_tasklock")

T = TypeVar("T")

OUTAGE_PAUSE_SECONDS = 1.0
"""between two tries to wait for the lock, while the store does not answer"""


def lead(name: str, run: Callable[..., T], ttl: float = 15, *, store: str = DEFAULT_ALIAS) -> T:
    """Wait until this process leads, and call ``run`` then. Returns what ``run`` returns.

    Of all processes that lead under ``name``, one is in ``run``: the holder of the lock ``name``.
    The others wait, for as long as it takes. When the leader dies, the first of them on its machine
    takes over at once, and on other machines when the lease is over.

    ``run``: a callable. It gets the `Lease` if it has a parameter without a default. ``ttl``:
    seconds that the lease lasts; it is renewed. ``store``: an alias of the setting.

    When the lease is lost, nothing stops ``run``: it must look at ``lease.held``, or call
    ``lease.assert_held()``, more often than every ``ttl`` seconds. If it returns, or raises this
    `LeaseLost`, after the loss, then `lead` waits again, and calls it again when this process
    leads again.
    If it returns with the lease, or has released or detached it itself, or raises anything else,
    the lease is released, and `lead` returns or raises the same.

    While the store does not answer, `lead` goes on waiting, and logs a warning. Raises `TypeError`
    or `ValueError` for a wrong argument, and `InvalidLockConfig`.
    """
    checked_name(name)
    checked_ttl(ttl)
    for kind in (run, getattr(run, "__call__", None)):  # noqa: B004 - of an instance
        if iscoroutinefunction(kind):
            raise TypeError(f"run cannot be async, because lead() is not: {run!r}")
        if is_generator(kind):
            raise TypeError(f"run cannot be a generator, which would not start: {run!r}")
    service, takes_lease = LockService(store), _takes_lease(run)
    while True:
        # It gives the lease up if a signal handler raises before `try`.
        use = Use(None)
        lease = wait_to_lead(service, name, ttl, task=f"lead {_named(run)}", use=use)
        try:
            result = run(lease) if takes_lease else run()
            if lease.held or lease._ended_well():
                return result
        except LeaseLost as error:
            if lease.held or lease._ended_well() or error.name != name:
                raise
        finally:
            try:
                lease.release()
            except StoreUnavailable as error:
                log_not_released("a leader", name, error)


def wait_to_lead(
    service: LockService,
    name: str,
    ttl: float,
    *,
    task: str,
    use: Use,
    group: int | None = None,
) -> Lease:
    """Return a lease on the lock ``name``, which is renewed, however long that takes.

    An outage of the store is waited for. ``task``, ``use`` and ``group`` are those of
    `LockService.try_acquire`.
    """
    answered = True
    while True:
        try:
            won = service.try_acquire(
                name, ttl=ttl, wait=None, renew=True, task=task, use=use, group=group
            )
        except StoreUnavailable as error:
            if answered:
                logger.warning("waiting to lead %s: %s", name, printable(error))
            answered = False
            time.sleep(OUTAGE_PAUSE_SECONDS)
        else:
            if isinstance(won, Lease):
                return won


def _takes_lease(run: Callable[..., Any]) -> bool:
    try:
        signature = signature_of(run)
    except ValueError:  # A function written in C.
        return False
    # Not every parameter: that of `serve_forever(poll_interval=0.5)` is none for a lease.
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature.parameters.values()
    takes_lease = any(p.kind in positional and p.default is p.empty for p in parameters)
    try:
        signature.bind(*["the lease"] if takes_lease else [])
    except TypeError as error:
        raise TypeError(f"run gets the lease or nothing, and {run!r} does not: {error}") from None
    return takes_lease


def _named(run: Callable[..., Any]) -> str:
    return str(getattr(run, "__qualname__", type(run).__qualname__))
