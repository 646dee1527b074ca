"""A body that returns just when its lease is found lost: nothing is raised after it."""

from __future__ import annotations

import pytest

from tests.agent import run_python

pytestmark = pytest.mark.usefixtures("on_redis")

AT_THE_RETURN = """
import collections, random, signal, sys, threading, time
from django_tasklock import LeaseLost, locks
from tests.inside import call_until_lost, lose

where, times, interrupted = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "interrupted"
BODY_SECONDS = 1e-3
ends, to_lose, lost = collections.Counter(), collections.deque(), collections.deque()
sys.setswitchinterval(1e-5)

class SoftTimeLimit(Exception): ...

def limit(*_):
    if armed:
        raise SoftTimeLimit

armed = []
signal.signal(signal.SIGALRM, limit)

def spend(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass

def slowly(frame, event, arg):
    if frame.f_code.co_name == "alarm":
        time.sleep(random.choice([0, 100e-6]))
        return slowly

def lose_them():
    sys.settrace(slowly)
    while True:
        while not to_lose:
            time.sleep(0)
        lease, seconds = to_lose.popleft()
        spend(seconds)
        lose(lease)
        lost.append(lease)

def body():
    spend(BODY_SECONDS)
    return "returned"

def calls():
    moment = BODY_SECONDS / 2
    for number in range(times):
        lease = locks.acquire(f"video:{number}", ttl=60)
        to_lose.append((lease, moment + random.uniform(-1e-4, 1e-4)))
        try:
            try:
                if interrupted:
                    armed.append(True)
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.5, 2) * BODY_SECONDS)
                end = call_until_lost(lease, body)
            finally:
                armed.clear()
        except LeaseLost:
            end = "stopped"
        except SoftTimeLimit:
            end = "limited"
        while not lost:
            time.sleep(0)
        lost.clear()
        spend(20e-6)  # What strays raises here.
        ends[end] += 1
        moment += 1e-5 if end == "stopped" else -1e-5  # Near the return, on any machine.
        assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    print(*(ends[end] for end in ("returned", "stopped", "limited")))

threading.Thread(target=lose_them, daemon=True).start()
if where == "main":
    calls()
else:
    thread = threading.Thread(target=calls)
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize("times", [500, pytest.param(8000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("where_", "limit"), [("main", ""), ("main", "interrupted"), ("thread", "")]
)
def test_nothing_strays_at_the_moment_of_the_return(where_: str, limit: str, times: int) -> None:
    # Given losses that are found when the body returns, and a soft time limit at the same moment
    ends = [int(word) for word in run_python(AT_THE_RETURN, where_, str(times), limit).split()]
    # I expect an exception in the body, or none
    assert sum(ends) == times
    assert min(ends[:2]) > 5, ends
