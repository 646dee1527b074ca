"""``lead()`` in threads of one process; ``tests/top/test_leader_processes.py`` has processes."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from django_tasklock import Lease, LeaseLost, LockNotAcquired, locks
from django_tasklock.leader import lead
from tests.conftest import UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, holder, taken, waiting
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("on_redis")


def test_one_leads_and_the_next_takes_over_when_it_returns() -> None:
    leading = []
    go_on = threading.Event()

    def run(lease: Lease) -> int:
        leading.append(lease.fence or 0)
        assert go_on.wait(PATIENCE)
        return len(leading)

    # Given three that want to lead
    leaders: list[Meanwhile[int]] = [
        Meanwhile(lambda: lead("scheduler", run, LONG)) for _ in range(3)
    ]
    until(lambda: waiting("scheduler") == 2, "the others wait")
    assert len(leading) == 1
    assert holder("scheduler").granted == LONG
    assert holder("scheduler").renewing
    assert str(holder("scheduler").owner.task).endswith("<locals>.run")
    # When the leader ends by itself, I expect each of the others to lead
    go_on.set()
    assert sorted(leader.result() for leader in leaders) == [1, 2, 3]
    assert leading == sorted(leading)
    assert not locks.is_locked("scheduler")


def test_run_gets_the_lease_if_it_has_a_parameter_for_it() -> None:
    def serve(poll_interval: Any = 0.5, *args: Any) -> Any:
        return poll_interval

    assert lead("x", lambda: locks.is_locked("x"))
    assert lead("x", lambda lease: lease.name) == "x"
    assert lead("x", serve) == 0.5
    assert lead("x", dict) == {}


def test_leader_that_ends_because_it_lost_the_lease_leads_again() -> None:
    runs: list[Lease] = []

    def run(lease: Lease) -> str:
        runs.append(lease)
        if len(runs) < 3:
            assert locks.clear("x")
            assert not lease.extend()
        if len(runs) == 1:
            lease.assert_held()
        return f"run {len(runs)}"

    # Given one that raises the loss, and one that returns at the loss, I expect it to lead again
    assert lead("x", run, LONG) == "run 3"
    assert len({lease.token for lease in runs}) == 3


def test_leader_that_gives_its_lease_back_or_hands_it_on_has_finished() -> None:
    runs: list[Lease] = []

    def go_on_without_it(lease: Lease) -> None:
        runs.append(lease)
        lease.release()
        lease.assert_held()

    def hand_on(lease: Lease) -> str:
        runs.append(lease)
        return lease.detach(LONG)

    with pytest.raises(LeaseLost, match="released"):
        lead("x", go_on_without_it)
    # I expect the lock to go on under the lease that was handed on
    adopted = locks.adopt(lead("x", hand_on))
    assert adopted
    assert adopted.release()
    assert len(runs) == 2


def test_loss_of_another_lease_or_an_exit_ends_the_leader() -> None:
    def lose(lease: Lease) -> None:
        other = taken("other")
        for lost in (other, lease):
            assert locks.clear(lost.name)
            assert not lost.extend()
        other.assert_held()

    with pytest.raises(LeaseLost) as caught:
        lead("x", lose)
    assert caught.value.name == "other"
    with pytest.raises(SystemExit):
        lead("größe:日本", sys.exit)
    assert not locks.count()


def test_thread_that_leads_already_is_told_so() -> None:
    with pytest.raises(LockNotAcquired, match="this very thread"):
        lead("x", lambda: lead("x", dict))


def test_outage_is_waited_for_before_the_run_and_not_after_it(
    use_redis: UseRedis, own_redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    use_redis(own_redis_server.url)
    own_redis_server.stop()

    def run() -> str:
        own_redis_server.stop()
        return "done"

    leader = Meanwhile(lambda: lead("x", run, LONG))
    until(lambda: "waiting to lead x: " in caplog.text)
    own_redis_server.restart()
    # I expect the end of a run that is done not to be one
    assert leader.result() == "done"
    assert caplog.text.count("waiting to lead") == 1
    assert "a leader could not release its lock x now: " in caplog.text


def test_arguments_that_cannot_be_meant() -> None:
    class Runner:
        async def __call__(self) -> None:
            pass

    # I expect it to be said before it waits to lead
    taken("x")
    wrong: dict[Any, str] = {
        Runner(): "async",
        Runner.__call__: "async",
        (lambda: (yield)): "generator",
        (lambda a, b: None): "gets the lease or nothing",
        (lambda *, lease: None): "gets the lease or nothing",
        7: "callable",
    }
    for run, match in wrong.items():
        with pytest.raises(TypeError, match=match):
            lead("x", run)
    for name, ttl in (("x", 0.0), ("a name", 15.0)):
        with pytest.raises(ValueError):
            lead(name, dict, ttl)
