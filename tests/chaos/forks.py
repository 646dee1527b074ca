"""A process that forks in the middle of everything, and whose child uses locks too."""

from __future__ import annotations

import os
import signal

from django_tasklock import StoreUnavailable, locks
from django_tasklock._engine.lease import Lease

__all__ = ["in_a_fork"]

HANGS_SECONDS = 60
"""a child that takes longer is ended"""
TTL_SECONDS = 2.0


def in_a_fork(lease: Lease) -> str:
    """Fork, and take another lock in the child. Returns what is wrong there; "" if nothing is.

    Not for a thread that may be interrupted: it would leave the child behind.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(HANGS_SECONDS)
        try:
            said = _used(lease)
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        said = file.read()
    _, status = os.waitpid(child, 0)
    return said or (f"the child ended with {status}" if status else "")


def _used(lease: Lease) -> str:
    if lease.held:
        return "the child holds its parent's lease"
    try:
        own = locks.acquire(f"seat:of-child-{os.getpid()}", ttl=TTL_SECONDS)
        if own is None:
            return "a lock that nobody holds was refused"
        own.release()
    except StoreUnavailable:
        pass
    return ""
