"""``lead()`` in threads of one process, and ``manage.py locks lead`` with real signals.

``locks run`` ends the process group of its command in the same way: `tests.cli.test_command_run`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_tasklock import Lease, LeaseLost, LockNotAcquired, locks
from django_tasklock.leader import lead
from tests.conftest import UseRedis
from tests.greenlets import run_in_greenlets
from tests.servers import RedisServer
from tests.stage.workers import gone
from tests.steps import LONG, Meanwhile, holder, taken, waiting
from tests.waiting import PATIENCE, until

pytestmark = [pytest.mark.usefixtures("on_redis"), pytest.mark.django_db(transaction=True)]


def test_one_leads_and_the_next_takes_over_when_it_returns() -> None:
    # Given a function that three processes want to run, one of them at a time
    leading, go_on = [], threading.Event()

    def run(lease: Lease) -> int:
        leading.append(lease.fence or 0)
        assert go_on.wait(PATIENCE)
        return len(leading)

    leaders = [Meanwhile(lambda: lead("scheduler", run, LONG)) for _ in range(3)]

    # I expect one to lead, under a lock that is renewed and names the function, and two to wait
    until(lambda: waiting("scheduler") == 2, "the others wait")
    assert len(leading) == 1
    info = holder("scheduler")
    assert (info.granted, info.renewing) == (LONG, True)
    assert str(info.owner.task).endswith("<locals>.run")

    # When the leader ends by itself, I expect each of the others to lead
    go_on.set()
    assert sorted(leader.result() for leader in leaders) == [1, 2, 3]
    assert leading == sorted(leading)
    assert not locks.is_locked("scheduler")


def test_a_leader_that_ends_because_it_lost_the_lease_leads_again() -> None:
    runs: list[Lease] = []

    def run(lease: Lease) -> str:
        runs.append(lease)
        if len(runs) < 3:
            assert locks.clear("x")
            assert not lease.extend()
        if len(runs) == 1:
            lease.assert_held()
        return f"run {len(runs)}"

    # One run raises the loss, and one returns at the loss
    assert lead("x", run, LONG) == "run 3"


def test_a_leader_that_stops_at_the_loss_leads_again() -> None:
    runs: list[Lease] = []

    def run(lease: Lease) -> str:
        runs.append(lease)
        if len(runs) == 1:
            assert locks.clear("x")
            time.sleep(PATIENCE)
            pytest.fail("it was not stopped")
        return f"run {len(runs)}"

    assert lead("x", run, 0.9, stop=True) == "run 2"
    assert lead("x", lambda: "run 3", stop=True) == "run 3"


def test_no_leader_stops_where_threads_are_greenlets() -> None:
    program = "from django_tasklock.leader import lead\nlead('x', print, stop=True)"
    with pytest.raises(AssertionError, match=r"cannot stop lead\('x'\) at a loss. Use another"):
        run_in_greenlets(program)


def test_a_leader_that_gives_its_lease_back_or_hands_it_on_has_finished() -> None:
    def go_on_without_it(lease: Lease) -> None:
        lease.release()
        lease.assert_held()

    with pytest.raises(LeaseLost, match="released"):
        lead("x", go_on_without_it)
    # I expect the lock to go on under the lease that was handed on
    adopted = locks.adopt(lead("x", lambda lease: lease.detach(LONG)))
    assert adopted
    assert adopted.release()


def test_the_loss_of_another_lease_or_an_exit_ends_the_leader() -> None:
    other = taken("other")

    def lose(lease: Lease) -> None:
        for lost in (other, lease):
            assert locks.clear(lost.name)
            assert not lost.extend()
        other.assert_held()

    with pytest.raises(LeaseLost, match="other"):
        lead("x", lose)
    with pytest.raises(SystemExit):
        lead("größe:日本", sys.exit)
    assert not locks.count()


def test_an_outage_is_waited_for_before_the_run_and_not_after_it(
    use_redis: UseRedis, own_redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    use_redis(own_redis_server.url)
    own_redis_server.stop()
    leader = Meanwhile(lambda: lead("x", own_redis_server.stop, LONG))
    until(lambda: "waiting to lead x: " in caplog.text)
    own_redis_server.restart()
    # I expect the end of a run that is done not to be one
    leader.result()
    assert caplog.text.count("waiting to lead") == 1
    assert "a leader could not release its lock x now: " in caplog.text


def test_run_gets_the_lease_if_it_has_a_parameter_for_it_and_what_cannot_be_meant_is_said() -> None:
    class Runner:
        async def __call__(self) -> None:
            pass

    assert lead("x", lambda poll_interval=0.5, *args: poll_interval) == 0.5
    assert lead("x", dict) == {}
    with pytest.raises(LockNotAcquired, match="this very thread, which leads"):
        lead("x", lambda: lead("x", dict))
    # I expect it to be said before it waits to lead
    taken("x")
    wrong: dict[Any, str] = {
        Runner(): "async",
        (lambda: (yield)): "generator",
        (lambda a, b: None): "the lease, by position, or nothing",
        (lambda *, lease: None): "the lease, by position, or nothing",
        7: "callable",
    }
    for run, match in wrong.items():
        with pytest.raises(TypeError, match=match):
            lead("x", run)
    with pytest.raises(ValueError):
        lead("x", dict, 0.0)


HOURS = 7200
STAY = "trap 'exit 7' TERM"
STUBBORN = "trap '' TERM"
Start = Callable[..., Any]


@pytest.fixture
def start(process_env: Callable[[], dict[str, str]], tmp_path: Path) -> Iterator[Start]:
    """``start(STAY, ttl)``: ``locks lead x`` in a process of its own, with a command that stays."""
    script = f"echo $$ >> {tmp_path / 'ran'}; %s; while :; do sleep 0.05; done"
    started: list[subprocess.Popen[bytes]] = []

    def start(at_its_end: str, ttl: float) -> subprocess.Popen[bytes]:
        command = ["x", "--ttl", str(ttl), "--", "sh", "-c", script % at_its_end]
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "django", "locks", "lead", *command],
                env=process_env(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def ran(tmp_path: Path, times: int) -> int:
    """Wait until the command has started so often; the process id of the last one."""
    file = tmp_path / "ran"
    until(lambda: file.exists() and len(file.read_text().split()) == times, "it", 2 * PATIENCE)
    return int(file.read_text().split()[-1])


@pytest.mark.slow
def test_a_process_that_ends_or_is_killed_ends_its_command_and_the_standby_leads(
    start: Start, tmp_path: Path
) -> None:
    first = start(STAY, HOURS)
    ran(tmp_path, 1)
    second = start(STAY, HOURS)
    until(lambda: waiting("x") == 1, "a standby")
    first.terminate()
    # I expect the command's own status, and the standby to lead
    assert first.wait(PATIENCE) == 7
    pid = ran(tmp_path, 2)
    assert holder("x").owner.pid == second.pid
    third, fourth = start(STAY, HOURS), start(STAY, HOURS)
    until(lambda: waiting("x") == 2, "two standbys")
    third.terminate()  # A standby ends at once.
    assert third.wait(PATIENCE) == 128 + signal.SIGTERM
    # When the leader is killed, I expect its command to die, and the next to lead at once
    second.kill()
    ran(tmp_path, 3)
    assert gone(pid)
    assert holder("x").owner.pid == fourth.pid


@pytest.mark.slow
def test_a_standby_that_has_asked_long_ago_leads_for_good(start: Start, tmp_path: Path) -> None:
    # Given a standby that is handed the lock late in what its question asked for
    first = start(STAY, ttl := 6)
    ran(tmp_path, 1)
    start(STAY, ttl)
    until(lambda: (holder("x").longest_wait or 0) > 0.4 * ttl, "an old question", 2 * PATIENCE)
    first.terminate()
    assert first.wait(PATIENCE) == 7
    ran(tmp_path, 2)

    # I expect its command not to be stopped before its lease is renewed, nor started again
    until(lambda: (holder("x").ttl or ttl) < 0.8 * ttl, "a second, or a renewal")
    until(lambda: (holder("x").ttl or 0) > 0.8 * ttl, "the renewal")
    assert "SIGTERM" not in (tmp_path / "log").read_text()
    ran(tmp_path, 2)


@pytest.mark.slow
def test_a_command_is_dead_before_the_lease_that_cannot_be_renewed_is_over(
    start: Start, use_redis: UseRedis, own_redis_server: RedisServer, tmp_path: Path
) -> None:
    # Given a command that ignores SIGTERM
    use_redis(own_redis_server.url, SOCKET_TIMEOUT=0.5)
    leader = start(STUBBORN, ttl := 6)
    pid = ran(tmp_path, 1)
    # When the store is silent, I expect it to be dead before its lease is over
    own_redis_server.pause()
    silent = time.monotonic()
    until(lambda: gone(pid), "the command's end")
    assert time.monotonic() - silent < ttl
    # and to run again when the store is back
    own_redis_server.resume()
    ran(tmp_path, 2)
    assert holder("x").owner.pid == leader.pid
    # I expect SIGTERM while it is being stopped to be heeded
    own_redis_server.pause()
    until(lambda: (tmp_path / "log").read_text().count("cannot be renewed") == 2, "SIGTERM")
    leader.terminate()
    assert leader.wait(PATIENCE) != 0
    own_redis_server.resume()


@pytest.mark.slow
@pytest.mark.parametrize(("ttl", "left"), [pytest.param(20, 3, marks=pytest.mark.nightly), (8, -1)])
def test_a_leader_that_was_stopped_for_a_while_kills_its_command_with_the_lease(
    start: Start, use_redis: UseRedis, own_redis_server: RedisServer, tmp_path: Path, ttl: int,
    left: int,
) -> None:  # fmt: skip
    # Given a command that ignores SIGTERM, and a leader that wakes up late in its lease, or later
    use_redis(own_redis_server.url, SOCKET_TIMEOUT=0.5)
    leader = start(STUBBORN, ttl)
    pid = ran(tmp_path, 1)
    leader.send_signal(signal.SIGSTOP)
    end = time.monotonic() + (holder("x").ttl or 0)
    own_redis_server.pause()
    until(lambda: time.monotonic() > end - left, "the last seconds of the lease", within=2 * ttl)
    leader.send_signal(signal.SIGCONT)
    until(lambda: gone(pid), "the command's end")
    # I expect SIGKILL at the lease's end, or at once, and not a third of the ttl after SIGTERM
    assert time.monotonic() < max(end, end - left) + 2
    own_redis_server.resume()
