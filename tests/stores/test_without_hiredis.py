"""hiredis only makes it faster to read replies: a site need not have it."""

from __future__ import annotations

from tests.agent import run_python
from tests.conftest import UseRedis

EACH_VERB = """
import sys
sys.modules["hiredis"] = None

from concurrent.futures import ThreadPoolExecutor
from django_tasklock import lock, locks

def work():
    with lock("video:1", wait=30):
        return locks.is_locked("video:1")

with ThreadPoolExecutor(3) as threads:
    results = [thread.result() for thread in [threads.submit(work) for _ in range(3)]]
assert results == [True] * 3, results
with lock(["video:1", "video:2"]), lock("gpu", slots=2):
    assert len(locks.list("video:")) == 2
    assert locks.acquire("video:1") is None
lease = locks.acquire("video:1")
handle = lease.detach()
lease = locks.adopt(handle)
assert lease.extend(30)
assert locks.clear("video:1")
assert {event.kind for event in locks.history()} >= {"refused", "cleared"}
"""


def test_each_verb_without_hiredis(use_redis: UseRedis) -> None:
    use_redis()
    run_python(EACH_VERB)
