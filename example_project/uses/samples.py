"""Locks for the pages of the admin, which ``make serve`` has at its start: real leases of real
processes, which end with the site."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django_tasklock import Lease, lock, locks
from example_project.processes import START_SECONDS, NotReady
from example_project.uses.crew import Member, crew_of

LONG_SECONDS = 8 * 3600.0
_kept: list[Lease | None] = []
"""A lease that nobody refers to is not renewed any more."""


def hold(name: str, ttl: float, wait: float | None) -> None:
    """Hold a lock for as long as the process lives. One that is taken is held by somebody else."""
    _kept.append(locks.acquire(name, ttl=ttl, wait=wait, renew=True))


def work_and_cool(name: str) -> None:
    """Work for a moment under a lock that stays taken afterwards."""
    with lock(name, ttl=60, cooldown=LONG_SECONDS):
        pass


def operate(cleared: str, held: str) -> None:
    """Do what an operator does."""
    locks.clear(cleared, by="anna")
    locks.hold(held, LONG_SECONDS, by="anna", reason="the bank is closed")


@contextlib.contextmanager
def sample_locks(logs: Path) -> Iterator[None]:
    """For the time of the block there are locks in every state that a lock can be in.

    Raises:
        NotReady: one of the processes has ended, or does not get to its lock.
    """
    with crew_of(3, logs) as crew:
        holder, waiter, victim = crew.members
        _have(holder, "hold", "import:prices", 60, 0)
        _have(holder, "hold", "export:orders", 60, 0)
        _have(holder, "work_and_cool", "newsletter")
        _have(victim, "hold", "import:stock", LONG_SECONDS, 0)
        victim.kill()
        _have(waiter, "hold", "import:prices", 60, 0)  # refused
        _have(waiter, "operate", "export:orders", "payments")
        waiter.tell("samples", "hold", "import:prices", 60, None)
        deadline = time.monotonic() + START_SECONDS
        while not locks.waiters("import:prices"):
            if time.monotonic() > deadline:
                raise NotReady("Nobody waits for the lock import:prices.")
            time.sleep(0.05)
        yield


def _have(member: Member, function: str, *arguments: Any) -> None:
    member.tell("samples", function, *arguments)
    member.answer()
