"""``manage.py locks lead``: real processes and real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import UseRedis
from tests.servers import RedisServer
from tests.steps import holder, waiting
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

PATIENCE = 90.0
"""seconds; each process imports Django on a machine that may be busy"""
HOURS = "7200"
"""a ttl that no test waits for"""
Lead = Callable[..., "subprocess.Popen[bytes]"]
STAY = "echo $$ >> {file}; trap 'exit 7' TERM; while :; do sleep 0.05; done"
STUBBORN = "echo $$ >> {file}; trap '' TERM; while :; do sleep 0.05; done"
TWO = """\
for old in $(cat {file}); do
    grep -q 'State:.[^ZX]' /proc/$old/status && echo $old >> {file}-two
done
(trap '' TERM; exec sh -c 'echo $$ >> {file}; exec sleep 300') & wait
"""
"""A command that ends of SIGTERM, and a child of it that does not. It writes down which children of
those before it still live when it starts."""


@pytest.fixture
def lead(process_env: Callable[[], dict[str, str]], tmp_path: Path) -> Iterator[Lead]:
    """``lead("name", "--", "command")``: ``locks lead`` in a process of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        with (tmp_path / f"lead-{len(started)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "django", "locks", "lead", *arguments],
                env=process_env(), cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """To which each command writes its process id."""
    return tmp_path / "ran"


def ran(file: Path) -> list[int]:
    """The process ids of the commands that have started, the first one first."""
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def leader_and_standby(lead: Lead, file: Path, *arguments: str) -> tuple[Any, Any]:
    """Two processes, of which the first one leads, and has started its command."""
    first = lead(*arguments)
    until(lambda: len(ran(file)) == 1, "a leader", PATIENCE)
    second = lead(*arguments)
    until(lambda: waiting("x") == 1, "a standby", PATIENCE)
    return first, second


def test_leader_that_ends_or_is_killed_ends_its_command_and_the_standby_leads(
    lead: Lead, use_redis: UseRedis, file: Path
) -> None:
    use_redis()
    command = ("x", "--ttl", HOURS, "--", "sh", "-c", STAY.format(file=file))
    first, second = leader_and_standby(lead, file, *command)
    first.terminate()
    # I expect the command's own status, and the standby to lead
    assert first.wait(PATIENCE) == 7
    until(lambda: len(ran(file)) == 2)
    assert holder("x").owner.pid == second.pid
    # A standby ends at once.
    third, fourth = lead(*command), lead(*command)
    until(lambda: waiting("x") == 2, "two standbys", PATIENCE)
    third.terminate()
    assert third.wait(PATIENCE) == 128 + signal.SIGTERM
    # When the leader is killed, I expect its command to die, and the next to lead at once
    second.kill()
    until(lambda: len(ran(file)) == 3, "a new leader", PATIENCE)
    assert not runs(ran(file)[1])
    assert holder("x").owner.pid == fourth.pid


def test_command_is_dead_before_the_lease_that_cannot_be_renewed_is_over(
    lead: Lead, use_redis: UseRedis, own_redis_server: RedisServer, file: Path
) -> None:
    # Given a command that ignores SIGTERM
    use_redis(own_redis_server.url)
    leader = lead("x", "--ttl", "8", "--", "sh", "-c", STUBBORN.format(file=file))
    until(lambda: len(ran(file)) == 1, "a leader", PATIENCE)
    # When the store is silent
    own_redis_server.pause()
    silent = time.monotonic()
    until(lambda: not runs(ran(file)[0]), "the command's end", PATIENCE)
    # I expect it to be dead before any lease that it may have had is over
    assert time.monotonic() - silent < 8
    # and to run again when the store is back
    own_redis_server.resume()
    until(lambda: len(ran(file)) == 2, "the command", PATIENCE)
    assert holder("x").owner.pid == leader.pid
    # I expect SIGTERM while it is being stopped to be heeded
    own_redis_server.pause()
    log = file.parent / "lead-0.log"
    until(lambda: log.read_text().count("cannot be renewed") == 2, "SIGTERM", PATIENCE)
    leader.terminate()
    assert leader.wait(PATIENCE) != 0
    own_redis_server.resume()


def test_leader_that_was_stopped_for_a_while_kills_its_command_with_the_lease(
    lead: Lead, use_redis: UseRedis, own_redis_server: RedisServer, file: Path
) -> None:
    # Given a command that ignores SIGTERM, and a leader that wakes up late in its lease
    use_redis(own_redis_server.url)
    leader = lead("x", "--ttl", "12", "--", "sh", "-c", STUBBORN.format(file=file))
    until(lambda: len(ran(file)) == 1, "a leader", PATIENCE)
    leader.send_signal(signal.SIGSTOP)
    end = time.monotonic() + (holder("x").ttl or 0)
    own_redis_server.pause()
    until(lambda: time.monotonic() > end - 1, "the last second of the lease", PATIENCE)
    leader.send_signal(signal.SIGCONT)
    until(lambda: not runs(ran(file)[0]), "the command's end", PATIENCE)
    # I expect SIGKILL at the lease's end, and not a third of the ttl after SIGTERM
    assert time.monotonic() < end + 1.5
    own_redis_server.resume()


@pytest.mark.nightly
def test_what_an_old_leaders_command_started_is_dead_before_the_next_one_starts(
    lead: Lead, use_redis: UseRedis, own_redis_server: RedisServer, file: Path
) -> None:
    # Given a leader and a standby, and a child of the command that ignores SIGTERM
    use_redis(own_redis_server.url)
    leader_and_standby(lead, file, "x", "--ttl", "15", "--", "sh", "-c", TWO.format(file=file))
    try:
        # When the lease cannot be renewed, and the store is back before it is over
        own_redis_server.pause()
        log = file.parent / "lead-0.log"
        until(lambda: "cannot be renewed" in log.read_text(), "SIGTERM", PATIENCE)
        own_redis_server.resume()
        until(lambda: len(ran(file)) == 2, "a new leader", PATIENCE)
        # I expect the new leader's command to have found nobody
        two = file.with_name(f"{file.name}-two")
        assert not two.exists(), f"of {ran(file)} still ran {two.read_text()}"
    finally:
        for pid in filter(runs, ran(file)):
            os.kill(pid, signal.SIGKILL)
