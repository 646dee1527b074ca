"""One thread that looks, for all who wait on event loops, whether the holders' processes live."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from ..._values.owner import Owner
from ..._values.owner_record import owner_record
from ..steps import OWNER_CHECK_SECONDS

__all__ = ["OwnerWatch", "owner_watch"]

Wake = Callable[[], None]
LINGER_ROUNDS = 20
"""so many rounds without anybody to watch, and the thread ends"""


class OwnerWatch:
    """Wakes waiters when the process of the holder has died.

    A thousand waiters that look for themselves, twenty times a second each, would leave no time for
    anything else. There are few processes whose locks they wait for.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget everything, in a new process."""
        self._guard = threading.Lock()
        self._watched: dict[Owner, dict[Wake, None]] = {}
        self._runs = False

    def add(self, owner: Owner, wake: Wake) -> Owner | None:
        """Have ``wake`` called, in any thread, once the process of ``owner`` is dead.

        Returns what `remove` is called with; None if it cannot be seen from here, or is this one.
        """
        here = owner_record()
        if not owner.is_local() or (owner.pid, owner.start) == (here["pid"], here["start"]):
            return None
        process = Owner(
            pid=owner.pid, boot=owner.boot, pidns=owner.pidns, start=owner.start, group=owner.group
        )
        with self._guard:
            self._watched.setdefault(process, {})[wake] = None
            if not self._runs:
                threading.Thread(target=self._run, name="tasklock-owners", daemon=True).start()
                self._runs = True
        return process

    def remove(self, process: Owner, wake: Wake) -> None:
        """Wake it no more."""
        with self._guard:
            wakes = self._watched.get(process)
            if wakes is not None:
                wakes.pop(wake, None)
                if not wakes:
                    del self._watched[process]

    def _run(self) -> None:
        idle = 0
        while True:
            time.sleep(OWNER_CHECK_SECONDS)
            with self._guard:
                processes = list(self._watched)
                idle = 0 if processes else idle + 1
                if idle > LINGER_ROUNDS:
                    self._runs = False
                    return
            for process in processes:
                if process.alive() is False:
                    with self._guard:
                        wakes = list(self._watched.pop(process, ()))
                    for wake in wakes:
                        wake()


owner_watch = OwnerWatch()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=owner_watch.begin)
