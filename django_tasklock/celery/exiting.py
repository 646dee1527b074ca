"""The runs of this process that its exit cuts short: their starts are taken back.

A worker whose pool is threads or greenlets ends a cold shutdown by leaving the interpreter: the
bodies do not come to their ``finally``. That is no death to hold against their messages.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..exceptions import StoreUnavailable
from ..lease import Lease

if TYPE_CHECKING:
    from .delivery import Delivery

__all__ = ["in_progress"]

_running: dict[Lease, Delivery] = {}


@contextmanager
def in_progress(lease: Lease, delivery: Delivery) -> Iterator[None]:
    """A run that holds ``lease``, until it has released it."""
    _running[lease] = delivery
    try:
        yield
    finally:
        _running.pop(lease, None)


@atexit.register
def _take_back() -> None:
    for lease, delivery in list(_running.items()):
        note = delivery.note_of_break()
        if note is not None and lease.held:
            try:
                delivery.task.locks.store.remember(note)
            except StoreUnavailable:
                return  # Nor would it answer for the others, and who exits is in a hurry.
