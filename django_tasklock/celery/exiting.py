"""The runs of this process that its exit cuts short: their starts are taken back.

A worker whose pool is threads or greenlets ends a cold shutdown by leaving the interpreter: the
bodies do not come to their ``finally``. That is no death to hold against their messages.
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING

from ..exceptions import StoreUnavailable
from ..lease import Lease

if TYPE_CHECKING:
    from .delivery import Delivery

__all__ = ["running"]

running: dict[Lease, Delivery] = {}
"""the runs that hold a lease, until they have released it"""


@atexit.register
def _take_back() -> None:
    for lease, delivery in list(running.items()):
        note = delivery.note_of_break()
        if note is not None and lease.held:
            try:
                delivery.task.locks.store.remember(note)
            except StoreUnavailable:
                return  # Nor would it answer for the others, and who exits is in a hurry.
