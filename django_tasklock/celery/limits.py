"""``lock_limits``: how many runs at once, or in so many seconds, besides one for each lock.

A lock's conflict means "a duplicate", and a limit's means "later". So the lock is asked first, and
only the run that has it asks for a permit of each limit. If one is full, it gives back what it has
taken, and its message waits in the queue. A permit that is lost changes nothing: the lock is the
safety.
"""

from __future__ import annotations

from contextlib import suppress

from .._engine.acquiring import Acquiring
from .._engine.lease import Lease
from .._engine.waiting import blocking
from ..exceptions import LockNotAcquired, StoreUnavailable
from .requeue import wait_freely
from .run import Run, Step, runs


class Limits(Step):
    """Takes a permit of each limit before the body, and releases them after it."""

    def start(self, run: Run, lease: Lease | None) -> None:
        """Take the permits. A message for which there is none is requeued; a call without a message
        raises `LockNotAcquired`."""
        message, task, tries = run.message, run.task, run.message.count("tries")
        templates = [template for template, _ in task.naming.limits]
        for (limit, name, token), template in zip(message.permits, templates, strict=True):
            if _is_had(name, task.lock_store):
                continue
            how = task.how_under(limit)
            won = blocking(Acquiring(how, name, run.use, template, token, tries=tries).steps())
            if isinstance(won, Lease):
                run.permits.append(won)
            elif message.queued:
                wait_freely(message, won, name, limit.n, "limit")
            else:
                raise LockNotAcquired(name, won)

    def ended(self, run: Run, lease: Lease | None) -> None:
        """Release the permits. They cool if the body has begun, whatever became of it."""
        for permit in reversed(run.permits):
            if not run.row.begun:
                permit.cool(None)
            with suppress(StoreUnavailable):  # It is given up.
                permit.release()


def _is_had(name: str, store: str) -> bool:
    """Whether a run around this one has a permit of that name: this one goes on under it."""
    return any(
        had.held and (had.store, had.base_name) == (store, name)
        for run in runs.get()
        for had in (run.lease, *run.permits)
    )
