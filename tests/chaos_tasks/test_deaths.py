"""The lock of a body that died, and what may keep its worker from clearing it."""

from __future__ import annotations

import pytest

from tests.chaos_tasks.written_history import WORKER, A, WrittenHistory


@pytest.mark.parametrize(("cleared", "cause"), [(2.1, "worker"), (4, "takeover"), (9, "worker")])
def test_a_child_is_killed(written: WrittenHistory, cleared: float, cause: str) -> None:
    written.send(0, A)
    written.die(1, A, 11, 1001)
    written.fault(2, "child killed", 11)
    written.clear(cleared, cause=cause)
    written.run(10, A, 12, 1002, before="running", again=True)
    assert written.rules() == ({"lock of the dead"} if cleared == 9 else set())


@pytest.mark.parametrize("cleared", [True, False])
def test_a_body_kills_itself(written: WrittenHistory, cleared: bool) -> None:
    written.send(0, A)
    written.die(1, A, 11, 1001)
    written.tell(1.5, "kills itself", 11, A)
    if cleared:
        written.clear(1.6)
    written.run(10, A, 12, 1002, before="running", again=True)
    assert written.rules() == (set() if cleared else {"lock of the dead"})


@pytest.mark.parametrize(
    ("fault", "whom", "excused"),
    [
        ("locks paused", 0, True), ("worker killed", WORKER, True),
        ("cold shutdown", WORKER, True), ("child stopped", 11, True),
        ("broker killed", 0, True), ("broker restarted", 0, True),
        ("broker cut", 0, False), ("worker killed", 20, False), ("child stopped", 21, False),
    ],
)  # fmt: skip
def test_its_worker_or_the_store_was_disturbed(
    written: WrittenHistory, fault: str, whom: int, excused: bool
) -> None:
    written.send(0, A)
    written.die(1, A, 11, 1001)
    written.fault(1.8, fault, whom)
    written.fault(2, "child killed", 11)
    written.run(10, A, 12, 1002, before="running", again=True)
    assert written.rules() == (set() if excused else {"lock of the dead"})


def test_a_run_without_a_lock(written: WrittenHistory) -> None:
    written.send(0, A)
    written.begin(1, A, 11)
    written.change(1.1, "new", "running", 1)
    written.start(1.2, A, 11, None)
    written.fault(2, "child killed", 11)
    written.run(10, A, 12, 1002, before="running", again=True)
    assert written.rules() == set()


def test_a_child_is_killed_after_its_body(written: WrittenHistory) -> None:
    written.send(0, A)
    written.run(1, A, 11, 1001)
    written.fault(2.5, "child killed", 11)
    assert written.rules() == set()


@pytest.mark.parametrize("killed", [3.5, 5])
def test_a_run_that_goes_on_has_not_died(written: WrittenHistory, killed: float) -> None:
    """Not yet, when another delivery of its message gives up."""
    written.send(0, A)
    written.begin(1, A, 11, task="once")
    written.fault(2, "child stopped before its claim", 11)
    written.die(3, A, 12, 1002, task="once", again=True)
    written.fault(killed, "child killed", 12)
    written.fail(4, A, 11, "TooManyAttempts")
    written.end(4.1, A, 11)
    written.clear(killed + 0.1)
    written.change(6, "running", "failed", 1002)
    assert written.rules() == (set() if killed == 3.5 else {"given up early"})
