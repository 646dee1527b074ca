"""``lead()`` in threads of one process; ``tests/top/test_leader_processes.py`` has processes."""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from django_tasklock import Lease, LeaseLost, locks
from django_tasklock.leader import lead
from tests.conftest import UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, RENEWED, Meanwhile, holder, taken, waiting
from tests.waiting import PATIENCE, until


@pytest.fixture(autouse=True)
def redis(use_redis: UseRedis) -> None:
    use_redis()


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


def test_error_is_raised_and_another_may_lead() -> None:
    def fail() -> None:
        raise LookupError("no schedule")

    with pytest.raises(LookupError):
        lead("x", fail)
    assert not locks.is_locked("x")


def test_leader_that_ends_because_it_lost_the_lease_leads_again() -> None:
    runs: list[Lease] = []

    def run(lease: Lease) -> str:
        runs.append(lease)
        if len(runs) == 1:
            # Given one that raises the loss
            assert locks.clear("x")
            assert not lease.extend()
            lease.assert_held()
        if len(runs) == 2:
            # and one that returns at the loss
            assert locks.clear("x")
            until(lambda: not lease.held)
            return "it lost the lock"
        return "it came to its end"

    # I expect it to lead again
    assert lead("x", run, RENEWED) == "it came to its end"
    assert len({lease.token for lease in runs}) == 3


def test_leader_that_gives_its_lease_back_or_hands_it_on_has_finished() -> None:
    runs: list[Lease] = []

    def run_once(lease: Lease) -> None:
        runs.append(lease)
        assert runs == [lease], "it was called again"

    def step_down(lease: Lease) -> str:
        run_once(lease)
        lease.release()
        return "it stepped down"

    def hand_on(lease: Lease) -> str:
        run_once(lease)
        return lease.detach(LONG)

    def go_on_without_it(lease: Lease) -> None:
        run_once(lease)
        lease.release()
        lease.assert_held()

    assert lead("x", step_down) == "it stepped down"
    runs.clear()
    with pytest.raises(LeaseLost, match="released"):
        lead("x", go_on_without_it)
    runs.clear()
    handle = lead("x", hand_on, RENEWED)
    # I expect the lock to go on under the lease that was handed on
    adopted = locks.adopt(handle)
    assert adopted is not None
    assert adopted.release()


def test_lease_that_is_lost_in_the_body_is_the_bodys_own_if_it_is_another() -> None:
    def run(lease: Lease) -> None:
        other = taken("other")
        for lost in (other, lease):
            assert locks.clear(lost.name)
            assert not lost.extend()
        other.assert_held()

    with pytest.raises(LeaseLost) as caught:
        lead("x", run)
    assert caught.value.name == "other"
    assert not locks.is_locked("x")


def test_exit_in_the_function_is_an_exit_that_releases() -> None:
    with pytest.raises(SystemExit):
        lead("größe:日本", sys.exit)
    assert not locks.is_locked("größe:日本")


def test_outage_is_waited_for(
    use_redis: UseRedis, own_redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    use_redis(own_redis_server.url)
    own_redis_server.stop()
    leader = Meanwhile(lambda: lead("x", lambda: "it leads"))
    until(lambda: "waiting to lead x: " in caplog.text)
    own_redis_server.restart()
    assert leader.result() == "it leads"
    assert caplog.text.count("waiting to lead") == 1


def test_run_that_is_done_is_not_failed_by_the_release(
    use_redis: UseRedis, own_redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    use_redis(own_redis_server.url)

    def run() -> str:
        own_redis_server.stop()
        return "done"

    assert lead("x", run, LONG) == "done"
    assert "a leader could not release its lock x now: " in caplog.text


def test_arguments_that_cannot_be_meant() -> None:
    async def run() -> None:
        pass

    asynchronous: Any = run
    with pytest.raises(TypeError, match="async"):
        lead("x", asynchronous)

    async def items() -> AsyncIterator[str]:
        yield "an item"

    class Runner:
        async def __call__(self) -> None:
            pass

    runner: Any = Runner()
    with pytest.raises(TypeError, match="async"):
        lead("x", runner)
    with pytest.raises(TypeError, match="generator"):
        lead("x", lambda: (yield))
    with pytest.raises(TypeError, match="generator"):
        lead("x", items)
    # I expect what it cannot be called with to be said before it waits to lead
    taken("x")
    calls: list[Any] = [lambda a, b: None, lambda *, lease: None]
    for wrong in calls:
        with pytest.raises(TypeError, match="gets the lease or nothing"):
            lead("x", wrong)
    with pytest.raises(TypeError):
        lead("x", 7)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        lead("x", dict, 0)
    with pytest.raises(ValueError):
        lead("a name", dict)
