"""Which of the waiters of a process reads for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ... import clock
from .mailbox import Mailbox

__all__ = ["Readers"]

SOON = 0.1
"""seconds in which an heir should have begun to read; who stepped down for it waits no longer"""
A_WHILE = 1.0
"""seconds after which who sleeps looks for itself whether anybody reads: an heir may be held up by
a connection of its own that answers no more"""


class Readers:
    """One waiter reads, the others sleep; who comes next in its line is made the heir.

    When the lock is handed over it then wakes its next holder, and not somebody who must wake
    that one first. An interruption may come between any two instructions: a role is given by
    one assignment, and taken back by whoever is named there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reader: Mailbox | None = None
        self._heir: Mailbox | None = None
        self._asleep: dict[Mailbox, None] = {}

    def listen(self, box: Mailbox, deadline: float, read: Callable[[Mailbox, float], None]) -> None:
        """Return when the mailbox has news, or at the deadline.

        ``read(box, deadline)`` delivers what comes, until this mailbox has news, or another one
        is to read, or the deadline.
        """
        comes_back = False
        try:
            while not box.news:
                left = deadline - clock.now()
                if left <= 0:
                    return
                with self._lock:
                    if self._reader is None and self._heir in (None, box):
                        self._reader = box
                if self._reader is box:
                    self._heir = None
                    read(box, deadline)
                    self._step_down()
                else:
                    self._sleep(box, left)
            comes_back = True
        finally:
            box.news = False
            if self._reader is box:
                self._reader = None
            if self._heir is box and not comes_back:
                self._heir = None
            self._pass_on()

    def reading(self) -> bool:
        """Whether anybody reads now."""
        return self._reader is not None

    def has_heir(self) -> bool:
        """Whether who reads should stop, for another one to read."""
        return self._heir is not None

    def comes_next(self, box: Mailbox) -> None:
        """The lock that is waited for at this mailbox will be handed to it as the next one."""
        # Who is not asleep reads already, or may be gone.
        if box in self._asleep:
            self._heir = box

    def leave(self, box: Mailbox) -> None:
        """Nobody listens at this mailbox any more."""
        if self._heir is box:
            self._heir = None
            self._pass_on()

    def _step_down(self) -> None:
        self._reader = None
        if self._heir is not None:
            # It may have seen somebody at it, and be asleep again.
            self._pass_on()

    def _sleep(self, box: Mailbox, seconds: float) -> None:
        """Until there is news, or until nobody reads any more."""
        try:
            self._asleep[box] = None
            heir = self._heir
            if heir is not None and heir is not box:
                if not box.bell.acquire(timeout=min(seconds, SOON)) and self._heir is heir:
                    self._heir = None
            elif self._reader is not None:
                box.bell.acquire(timeout=min(seconds, A_WHILE))
        finally:
            self._asleep.pop(box, None)

    def _pass_on(self) -> None:
        # Somebody may be asleep though nobody reads any more: wake one, who will.
        if self._asleep and self._reader is None:
            for box in list(self._asleep) if self._heir is None else (self._heir,):
                if box.bell.locked():
                    box.ring()
                    return
