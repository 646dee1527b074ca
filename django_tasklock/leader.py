"""``lead()``: of all processes that call it, one runs; another one takes over."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction

from ._engine.acquiring import How
from ._engine.lease import Lease
from ._engine.lock import Block
from ._engine.stopping import call_until_lost, check_can_stop
from ._engine.waiting import blocking
from ._values.arguments import checked_name, checked_ttl
from ._values.signatures import is_generator, signature_of
from ._values.words import logger, printable
from .conf import DEFAULT_ALIAS
from .exceptions import LeaseLost, StoreUnavailable

__all__ = ["Leading", "lead", "wait_to_lead"]

T = TypeVar("T")

# Between two tries to wait for the lock, while the store does not answer.
OUTAGE_PAUSE_SECONDS = 1.0


def lead(
    name: str, run: Callable[..., T], ttl: float = 15, *, store: str = DEFAULT_ALIAS,
    stop: bool = False,
) -> T:  # fmt: skip
    """Wait until this process leads, and call ``run`` then. Returns what ``run`` returns.

    Of all processes that lead under ``name``, one is in ``run``: the holder of the lock ``name``.
    The others wait, for as long as it takes. When the leader dies, the first of them on its machine
    takes over at once, and on other machines when the lease is over.

    Args:
        name: the lock's name.
        run: a callable. It gets the `Lease` if it has a parameter without a default.
        ttl: seconds that the lease lasts; it is renewed.
        store: an alias of the setting.
        stop: whether ``run`` is stopped when the lease is lost, ``ttl`` / 3 seconds after that at
            the latest. What is raised in it is a `KeyboardInterrupt`: in the main thread by the
            signal SIGUSR2, and in another thread when its call in C is over.

    Without ``stop``, ``run`` must look at ``lease.held``, or call ``lease.assert_held()``, more
    often than every ``ttl`` seconds. If it returns after the loss, or
    raises this `LeaseLost`, `lead` waits again, and calls it when this process leads again.
    If it raises anything else, returns with the lease, or has released or detached the lease
    itself, the lease is released, and `lead` raises or returns the same.

    While the store does not answer, `lead` goes on waiting, and logs a warning. Raises `TypeError`
    or `ValueError` for a wrong argument, `InvalidLockConfig`, also for ``stop`` under gevent or
    eventlet, and `LockNotAcquired` if this very thread leads already.
    """
    checked_name(name)
    checked_ttl(ttl)
    for kind in (run, getattr(run, "__call__", None)):  # noqa: B004 - of an instance
        if iscoroutinefunction(kind) or is_generator(kind):
            raise TypeError(f"run must be no generator and not async, as lead() is not: {run!r}")
    takes_lease = _takes_lease(run)
    check_can_stop(f"lead({name!r})", stop)
    task = f"lead {getattr(run, '__qualname__', type(run).__qualname__)}"
    how = How(store, ttl, wait=None, renew=True)
    while True:
        block = Leading(how, name, "a leader", task=task)
        lease = wait_to_lead(block)
        with block:
            try:
                body = partial(run, lease) if takes_lease else run
                result: T = call_until_lost(lease, body) if stop else body()
                if lease.held or lease.ended_well:
                    return result
            except LeaseLost as error:
                if lease.held or lease.ended_well or error.name != name:
                    raise


class Leading(Block):
    """The lock of a leader."""

    hint = "by this very thread, which leads already"
    quiet = True


def wait_to_lead(block: Leading) -> Lease:
    """Acquire the lock, however long that takes: an outage of the store is waited for.

    Raises `LockNotAcquired` if this very thread leads already.
    """
    answered = True
    while True:
        try:
            return blocking(block.steps())  # type: ignore[no-any-return]
        except StoreUnavailable as error:
            if answered:
                logger.warning("waiting to lead %s: %s", block.name, printable(error))
            answered = False
        time.sleep(OUTAGE_PAUSE_SECONDS)


def _takes_lease(run: Callable[..., Any]) -> bool:
    # Not every parameter: that of `serve_forever(poll_interval=0.5)` is none for a lease.
    needed = [
        p for p in signature_of(run).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]  # fmt: skip
    if len(needed) > 1 or any(p.kind is p.KEYWORD_ONLY for p in needed):
        raise TypeError(f"run must take the lease, by position, or nothing: {run!r} needs {needed}")
    return bool(needed)
