"""The statements of the wait queues.

A release hands nothing over: it only ends the lease. The queue says who may take the lock then.
`acquire` grants nothing to a caller while a waiter that is alive stands before it, so a lock goes
to the waiters in their order, and a caller that just came gets it after them. That only one lease
holds a lock never depends on the queue: the lock's own row decides that.

A waiter that has died is passed over once it counts as dead, and at once where its process is known
to be gone (`DatabaseStore.clear` removes it then, as it removes a dead holder's lease).
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

__all__ = [
    "ALIVE_SECONDS",
    "CHANNEL",
    "LAST_POSITION",
    "LOOKED_AHEAD",
    "QUEUE",
    "QueueStatements",
    "waiter_before",
]

QUEUE = "django_tasklock_waiter"
"""the table of the model `WaiterRow`"""
CHANNEL = "django_tasklock"
"""of PostgreSQL's notifications; the payload is the key of a lock that may be free"""
ALIVE_SECONDS = 3
"""how long a waiter counts as alive after it wrote so"""
LAST_POSITION = 2**62
"""the position of a caller that is not in the queue: after all that are"""
LOOKED_AHEAD = 2
"""waiters before a waiter that count: it looks more often when there are fewer"""
DEAD_SECONDS = 60
"""after which the row of a dead waiter is deleted"""

_ALIVE_MICROSECONDS = ALIVE_SECONDS * 1_000_000


class QueueStatements:
    """The statements for one kind of database. A subclass sets `now`; see `Statements`."""

    now: ClassVar[str]

    @cached_property
    def join(self) -> str:
        """Returns the position."""
        return (
            f"INSERT INTO {QUEUE} (lock_key, token, alive, owner) VALUES "
            f"(%(key)s, %(token)s, {self.now} + {_ALIVE_MICROSECONDS}, %(owner)s) RETURNING id"
        )

    @cached_property
    def stay(self) -> str:
        return (
            f"UPDATE {QUEUE} SET alive = {self.now} + {_ALIVE_MICROSECONDS} WHERE id = %(position)s"
        )

    @cached_property
    def leave(self) -> str:
        return f"DELETE FROM {QUEUE} WHERE id = %(position)s"

    @cached_property
    def leave_before(self) -> str:
        """Removes what the waiter has before its position: a row whose reply was lost."""
        return f"{self.remove} AND id < %(position)s"

    acquire_and_leave: ClassVar[str] = ""
    """`Statements.acquire` for a waiter, which leaves the queue if it is granted the lock; empty
    where a database cannot do both at once"""

    @cached_property
    def remove(self) -> str:
        return f"DELETE FROM {QUEUE} WHERE lock_key = %(key)s AND token = %(token)s"

    @cached_property
    def queued(self) -> str:
        """The live waiters of a lock, the next one first: position, token, until when it counts as
        alive, owner, and the time."""
        return (
            f"SELECT id, token, alive, owner, {self.now} FROM {QUEUE} "
            f"WHERE lock_key = %(key)s AND alive > {self.now} ORDER BY id LIMIT %(limit)s"
        )

    @cached_property
    def forget_dead(self) -> str:
        return f"DELETE FROM {QUEUE} WHERE alive < {self.now} - {DEAD_SECONDS * 1_000_000}"


def waiter_before(now: str) -> str:
    """Whether a live waiter stands before ``position``."""
    return (
        f"EXISTS (SELECT 1 FROM {QUEUE} AS queued WHERE queued.lock_key = %(key)s "
        f"AND queued.alive > {now} AND queued.id < %(position)s)"
    )
