"""Takes the starts back of the runs that the exit of this process interrupts.

With a pool of threads or greenlets, a worker ends a cold shutdown by leaving the interpreter: the
``finally`` blocks of its tasks do not run. Such an interruption does not count as a death.

A child of a prefork pool ends without the handlers of `atexit`, and has events to write all the
same.
"""

from __future__ import annotations

import atexit

from celery.signals import worker_process_shutdown

from .._engine.history import write_last_events
from .._engine.lease import Lease
from ..exceptions import StoreUnavailable
from .delivery import Delivery

__all__ = ["running"]

running: dict[Lease, Delivery] = {}
"""the runs that hold a lease, or have handed it on, until they have ended"""


@atexit.register
def _take_starts_back() -> None:
    for lease, delivery in list(running.items()):
        if lease.held or lease._is_detached():
            try:
                delivery.take_start_back()
            except StoreUnavailable:
                return  # It would not answer for the other runs either, and the process exits.


@worker_process_shutdown.connect
def _write_last_events(**_: object) -> None:
    write_last_events()
