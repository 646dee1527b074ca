"""``manage.py locks lead``: real processes, real signals, and two real beats."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis as redis_client

from django_tasklock import locks
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

BEAT = """
from celery import Celery
app = Celery("beats", broker={url!r})
app.conf.task_default_queue = {queue!r}
app.conf.beat_schedule = {{"often": {{"task": "tick", "schedule": 0.2}}}}
"""


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


def leader_and_standby(lead: Lead, *arguments: str) -> tuple[Any, Any]:
    """Two processes, of which the first one leads."""
    first = lead(*arguments)
    until(lambda: locks.is_locked("x"), "a leader", PATIENCE)
    second = lead(*arguments)
    until(lambda: waiting("x") == 1, "a standby", PATIENCE)
    return first, second


def test_of_two_beats_one_sends_and_the_other_takes_over(
    lead: Lead, use_redis: UseRedis, redis_server: RedisServer, tmp_path: Path
) -> None:
    use_redis()
    queue = f"beats-{secrets.token_hex(6)}"
    (tmp_path / "beats.py").write_text(BEAT.format(url=redis_server.url, queue=queue))
    client: Any = redis_client.Redis.from_url(redis_server.url)

    def senders() -> list[str]:
        """Which process has sent each message, the first one first."""
        messages = map(json.loads, reversed(client.lrange(queue, 0, -1)))
        return [message["headers"]["origin"] for message in messages]

    try:
        # Given two beats, each under `locks lead`
        for number in range(2):
            lead(
                "beat", "--ttl", HOURS, "--",
                sys.executable, "-m", "celery", "-A", "beats", "beat", "-s", f"schedule-{number}",
            )  # fmt: skip
        # I expect one to send
        until(lambda: len(senders()) >= 5, "messages", PATIENCE)
        until(lambda: waiting("beat") == 1, "a standby", PATIENCE)
        (first,) = set(senders())
        # When its leader is killed
        leader = holder("beat").owner.pid
        assert leader
        os.kill(leader, signal.SIGKILL)
        # I expect the other one to send, long before the lease is over
        until(lambda: senders().count(first) + 5 <= len(senders()), "a new leader", PATIENCE)
        sent = senders()
        (second,) = set(sent) - {first}
        # and never the two in turns
        assert sent == [first] * sent.count(first) + [second] * sent.count(second)
        assert not runs(int(first.removeprefix("gen").partition("@")[0]))
    finally:
        client.delete(queue)


@pytest.mark.nightly
def test_on_another_machine_it_takes_over_within_the_ttl(
    lead: Lead, use_redis: UseRedis, file: Path
) -> None:
    # Given two that do not see each other's processes
    use_redis(tasklock={"OPTIONS": {"TAKEOVER": False}})
    first, _ = leader_and_standby(lead, "x", "--ttl", "5", "--", "sh", "-c", STAY.format(file=file))
    until(lambda: len(ran(file)) == 1)
    ends = time.monotonic() + (holder("x").ttl or 0)
    first.kill()
    until(lambda: len(ran(file)) == 2, "a new leader", PATIENCE)
    # I expect the first one's lease to have been over, and its command dead
    assert time.monotonic() >= ends
    assert not runs(ran(file)[0])


def test_sigterm_ends_the_command_and_the_standby_leads(
    lead: Lead, use_redis: UseRedis, file: Path
) -> None:
    use_redis()
    first, second = leader_and_standby(
        lead, "x", "--ttl", HOURS, "--", "sh", "-c", STAY.format(file=file)
    )
    until(lambda: len(ran(file)) == 1)
    first.terminate()
    # I expect the command's own status, and the standby to lead
    assert first.wait(PATIENCE) == 7
    until(lambda: len(ran(file)) == 2)
    assert holder("x").owner.pid == second.pid
    # A standby ends at once.
    third = lead("x", "--ttl", HOURS, "--", "sh", "-c", STAY.format(file=file))
    until(lambda: waiting("x") == 1, "a standby", PATIENCE)
    third.terminate()
    assert third.wait(PATIENCE) == 128 + signal.SIGTERM
    assert second.poll() is None


@pytest.mark.nightly
def test_command_that_ends_by_itself_ends_its_leader(lead: Lead, use_redis: UseRedis) -> None:
    use_redis()
    assert lead("x", "--", "sh", "-c", "exit 3").wait(PATIENCE) == 3
    assert not locks.is_locked("x")


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
    leader_and_standby(lead, "x", "--ttl", "15", "--", "sh", "-c", TWO.format(file=file))
    until(lambda: len(ran(file)) == 1, "a leader", PATIENCE)
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


@pytest.mark.nightly
def test_clear_makes_another_one_lead(lead: Lead, use_redis: UseRedis, file: Path) -> None:
    use_redis()
    first, second = leader_and_standby(
        lead, "x", "--ttl", "6", "--", "sh", "-c", STAY.format(file=file)
    )
    until(lambda: len(ran(file)) == 1)
    assert locks.clear("x")
    until(lambda: len(ran(file)) == 2 and not runs(ran(file)[0]), "a new leader", PATIENCE)
    assert holder("x").owner.pid == second.pid
    # I expect the one that was cleared to wait again
    until(lambda: waiting("x") == 1, "a standby", PATIENCE)
    assert first.poll() is None


@pytest.mark.parametrize("options", [("x", "--ttl", "0"), ("a name",)], ids=str)
@pytest.mark.nightly
def test_options_that_cannot_be_meant(lead: Lead, use_redis: UseRedis, options: Any) -> None:
    use_redis()
    assert lead(*options, "--", "true").wait(PATIENCE) == 2
