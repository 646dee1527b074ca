"""A process forks while one of its greenlets waits: the copy is none of the child's business."""

from __future__ import annotations

import pytest

from tests.conftest import UseRedis
from tests.greenlets import LIBRARIES, run_in_greenlets

pytestmark = [pytest.mark.nightly, pytest.mark.slow]


FORKED_WHILE_A_GREENLET_WAITS = """
import os, time
from django_tasklock import locks
from django_tasklock._engine import waiting
waiting.LONGEST_SILENCE_SECONDS = 2.0  # Not half a minute.
from tests.waiting import until

parent = os.getpid()

def work():
    lease = locks.acquire("video:1", ttl=60, wait=60)
    while True:
        if lease.held:
            # No buffer of this process.
            os.write(1, f"{'parent' if os.getpid() == parent else 'child'}\\n".encode())
        time.sleep(0.2)

first = locks.acquire("video:1", ttl=3)
spawn(work)
until(lambda: locks.get("video:1").waiters == 1)
pid = os.fork()
if pid == 0:
    time.sleep(7)  # It does something else, and lets other greenlets run.
    os._exit(0)
time.sleep(7)


os._exit(0)
"""


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_greenlet_that_waits_while_the_process_forks(use_redis: UseRedis, library: str) -> None:
    use_redis()
    assert set(run_in_greenlets(FORKED_WHILE_A_GREENLET_WAITS, library)) == {"parent"}


ENDED_IN_THE_CHILD = """
import os, time
from django_tasklock import locks
from tests.waiting import until

held = []

def work():
    held.append(locks.acquire("video:1", ttl=60, wait=60))

first = locks.acquire("video:1", ttl=60)
greenlet = spawn(work)
until(lambda: locks.get("video:1").waiters == 1)
pid = os.fork()
if pid == 0:
    time.sleep(0.5)
    greenlet.kill()  # It is none of this process's business.
    time.sleep(7)
    os._exit(0)
time.sleep(1)
first.release()
until(lambda: held, "the hand-over", 15)  # It would look by itself after half a minute.
os.waitpid(pid, 0)
info = locks.get("video:1")
print(held[0].held, info is not None and info.token == held[0].token)
"""


def test_a_child_that_ends_a_greenlet_does_not_release_its_parents_lease(
    use_redis: UseRedis,
) -> None:
    use_redis()
    assert run_in_greenlets(ENDED_IN_THE_CHILD) == ["True", "True"]
