"""Programs whose threads gevent or eventlet has made greenlets."""

from __future__ import annotations

import importlib.util

import pytest

from tests.agent import run_python

LIBRARIES = ["gevent", pytest.param("eventlet", marks=pytest.mark.nightly)]

BEGIN = """
import sys
if sys.argv[1] == "gevent":
    from gevent import monkey, sleep, spawn
    monkey.patch_all()
    join = lambda started: started.get()
else:
    import eventlet
    from eventlet import sleep, spawn
    eventlet.monkey_patch()
    join = lambda started: started.wait()
import django
django.setup()
"""

BUSY = """
import time
from django_tasklock import lock, locks

def compute(seconds):
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        sum(range(1000))

def others():
    while True:
        lease = locks.acquire("video:2", ttl=60, wait=None)
        sleep(0)
        lease.release()
        sleep(0)

[spawn(others) for _ in range(3)]
with lock("video:1", ttl=3) as lease:
    compute(4)
    sleep(0.01)
    compute(1)
    lease.assert_held()
waited = locks.acquire("video:3", ttl=0.5)
assert locks.acquire("video:3", wait=60), "a greenlet waits for the end of a lease"
print("waited")
"""
"""A greenlet computes while it holds a lease, and others are at it."""


def run_in_greenlets(program: str, library: str = "gevent") -> list[str]:
    """The words that a program prints. It has ``sleep``, ``spawn`` and ``join``.

    Skips the test without the library, which is not imported here: eventlet would warn of each fork
    later.
    """
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    return run_python(BEGIN + program, library, PYTHONWARNINGS="ignore").split()
