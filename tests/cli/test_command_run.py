"""``manage.py locks run``: real processes, and real signals."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.core.management import load_command_class

from django_tasklock import locks
from django_tasklock.cli.run_command import HELD_ELSEWHERE, LOST, OUTAGE
from tests.conftest import UseRedis
from tests.nights import by_day
from tests.servers import RedisServer
from tests.steps import Meanwhile, holder, waiting
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
PATIENCE = 90.0
"""seconds; each process imports Django on a machine that may be busy"""
Run = Callable[..., "subprocess.Popen[str]"]
TRAP = "trap 'echo told >&2; exit 7' TERM; echo started; while :; do sleep 0.05; done"
STUBBORN = "trap '' TERM; echo started; while :; do sleep 0.05; done"


@pytest.fixture
def run(use_redis: UseRedis, process_env: Callable[[], dict[str, str]]) -> Iterator[Run]:
    """``run("name", "--", "command")``: the command in a process of its own."""
    use_redis()
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **options: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "django", "locks", "run", *arguments],
            env=process_env(),
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=PATIENCE)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def said(process: subprocess.Popen[str]) -> str:
    """The next line that the command writes, and not a byte more: what Python's own buffer took
    with it, ``communicate`` would not return."""
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(process.stdout.fileno(), 1)):
        line += byte
    return line.decode().strip()


def gone(pid: int) -> bool:
    """Whether a process has ended: it is not there, or a zombie that nobody has asked for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def kill_those_left(pids: list[int]) -> None:
    for pid in pids:
        if not gone(pid):
            os.kill(pid, signal.SIGKILL)


def test_command_runs_under_the_lock_and_its_output_is_its_own(run: Run, tmp_path: Path) -> None:
    script = "echo started; while [ ! -e $0 ]; do sleep 0.05; done; echo $1"
    gate = tmp_path / "gate"
    process = run("nightly", "--ttl", "20", "--", "sh", "-c", script, str(gate), "--x")
    assert said(process) == "started"
    info = holder("nightly")
    assert (info.owner.pid, info.owner.task) == (process.pid, "locks run sh")
    assert (info.granted, info.renewing) == (20, True)
    gate.touch()
    code, out, err = ended(process)
    assert (code, out, err) == (0, "--x\n", "")
    assert not locks.is_locked("nightly")


def test_exit_status_is_the_commands(run: Run) -> None:
    for script, expected in (("exit 3", 3), ("kill -KILL $$", 128 + signal.SIGKILL)):
        code, _, err = ended(run("nightly", "--", "sh", "-c", script))
        assert (code, err) == (expected, "")
        assert not locks.is_locked("nightly")


@pytest.mark.nightly
def test_command_that_is_not_there(run: Run, tmp_path: Path) -> None:
    code, _, err = ended(run("nightly", "--", "no-such-command-here"))
    assert code == 127
    assert err == "no-such-command-here: No such file or directory\n"
    code, _, err = ended(run("nightly", "--", str(tmp_path)))
    assert code == 126
    assert not locks.is_locked("nightly")


def test_of_many_one_runs(run: Run, tmp_path: Path) -> None:
    # Given three hosts' cron at the same moment
    file = tmp_path / "ran"
    script = f"echo ran >> {file}; sleep 6"
    processes = [
        run("nightly", "--conflict-exit-code", "9", "--", "sh", "-c", script) for _ in range(3)
    ]
    results = [ended(process) for process in processes]
    # I expect one to have run, and the others to have said why they did not
    assert sorted(code for code, _, _ in results) == [0, 9, 9]
    assert file.read_text() == "ran\n"
    for code, _, err in results:
        assert bool(re.search(r"nightly: Held by \S+:\d+, task locks run sh", err)) == (code == 9)


def test_it_waits_for_its_turn(run: Run) -> None:
    lease = locks.acquire("nightly", ttl=120)
    assert lease
    process = run("nightly", "--wait", "--", "echo", "ran")
    until(lambda: waiting("nightly"), "somebody waits", PATIENCE)
    lease.release()
    assert ended(process)[:2] == (0, "ran\n")


@pytest.mark.parametrize("name", by_day("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"))
def test_signals_are_passed_on(run: Run, name: str) -> None:
    short = name.removeprefix("SIG")
    script = f"trap 'echo got {short}; exit 5' {short}; echo started; while :; do sleep 0.05; done"
    process = run("nightly", "--", "sh", "-c", script)
    assert said(process) == "started"
    process.send_signal(getattr(signal, name))
    code, out, _ = ended(process)
    assert (code, out) == (5, f"got {short}\n")
    assert not locks.is_locked("nightly")


def test_clear_tells_the_command_at_the_next_renewal_and_it_is_no_success(run: Run) -> None:
    process = run("nightly", "--ttl", "3", "--", "sh", "-c", TRAP.replace("exit 7", "exit 0"))
    assert said(process) == "started"
    assert locks.clear("nightly")
    # I expect it to be told, and that it ended well not to count
    code, _, err = ended(process)
    assert code == LOST
    assert "nightly was lost: the command gets SIGTERM." in err
    assert "told" in err.splitlines()


@pytest.mark.nightly
def test_command_that_does_not_listen_is_killed(run: Run) -> None:
    process = run("nightly", "--ttl", "3", "--kill-after", "0.5", "--", "sh", "-c", STUBBORN)
    assert said(process) == "started"
    assert locks.clear("nightly")
    assert ended(process)[0] == LOST


def test_store_that_is_gone_ends_the_command_with_the_lease(
    run: Run, use_redis: UseRedis, own_redis_server: RedisServer
) -> None:
    use_redis(own_redis_server.url)
    process = run("nightly", "--ttl", "3", "--", "sh", "-c", TRAP)
    assert said(process) == "started"
    own_redis_server.kill()
    code, _, err = ended(process)
    assert code == LOST
    assert "the command gets SIGTERM" in err
    assert "told" in err.splitlines()


FAMILY = """\
sleep 301 & echo $!
(sleep 302 & echo $!; wait) & echo $!
(trap "" TERM HUP; sleep 305 & echo $!; wait) & echo $!
echo $$
wait
"""
SIZE = 5
"""processes that write their number: children, grandchildren, and some that listen to no signal"""


def test_all_that_the_command_started_dies_with_it_before_the_lock_is_taken(run: Run) -> None:
    # Given a run whose own process is killed: nobody renews its lease any more
    process = run("nightly", "--ttl", "600", "--", "sh", "-c", FAMILY)
    family = [int(said(process)) for _ in range(SIZE)]
    waiter = Meanwhile(lambda: (locks.acquire("nightly", wait=PATIENCE), [*map(gone, family)]))
    until(lambda: waiting("nightly"), "somebody waits", PATIENCE)
    process.kill()
    # I expect who takes over, long before the lease's end, to find that all of them are gone
    lease, ended = waiter.result(PATIENCE)
    assert lease
    assert all(ended), ended


@pytest.mark.nightly
def test_lock_is_held_while_a_process_of_the_commands_group_lives(run: Run) -> None:
    # Given that the leader of the group is killed as well, and a process that nobody is left to end
    process = run("nightly", "--ttl", "600", "--", "sh", "-c", "sleep 300 & echo $!; wait")
    left = int(said(process))
    owner = holder("nightly").owner
    assert owner.group == os.getpgid(left)
    os.kill(owner.group, signal.SIGSTOP)
    process.kill()
    os.kill(owner.group, signal.SIGKILL)
    process.wait(PATIENCE)
    until(lambda: gone(owner.group or 0) and gone(owner.pid or 0), "both are gone", PATIENCE)
    try:
        # I expect it to count, and the lock not to be taken over before its end
        assert owner.alive() is True
        assert locks.acquire("nightly", wait=0.5) is None
    finally:
        os.kill(left, signal.SIGKILL)
    until(lambda: owner.alive() is False, "the end of the group", PATIENCE)
    assert locks.acquire("nightly", wait=PATIENCE)


@pytest.mark.nightly
def test_leader_of_the_group_that_is_killed_takes_the_command_with_it(run: Run) -> None:
    process = run("nightly", "--ttl", "600", "--", "sh", "-c", "sleep 300 & echo $!; wait")
    child = int(said(process))
    os.kill(holder("nightly").owner.group or 0, signal.SIGKILL)
    assert ended(process)[0] == 128 + signal.SIGKILL
    assert gone(child)
    assert not locks.is_locked("nightly")


class Terminal:
    """A terminal of its own, in whose foreground ``locks run nightly`` runs a command."""

    def __init__(self, env: dict[str, str], *arguments: str) -> None:
        self.master, self._slave = pty.openpty()
        script = 'exec "$@" <"$TTY" >"$TTY" 2>&1'
        self.process = subprocess.Popen(
            [
                *("sh", "-c", script, "sh", sys.executable, "-m", "django"),
                *("locks", "run", "nightly", "--ttl", "600", *arguments),
            ],
            env=env | {"TTY": os.ttyname(self._slave)},
            start_new_session=True,
        )
        self._drawn = b""

    def until_drawn(self, pattern: bytes) -> bytes:
        while not (found := re.search(pattern, self._drawn)):
            self._drawn += os.read(self.master, 4096)
        return found[1]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self.master)
        os.close(self._slave)


@pytest.fixture
def terminal(
    use_redis: UseRedis, process_env: Callable[[], dict[str, str]]
) -> Iterator[Callable[..., Terminal]]:
    use_redis()
    with contextlib.ExitStack() as stack:

        def start(*arguments: str) -> Terminal:
            started = Terminal(process_env(), *arguments)
            stack.callback(started.close)
            return started

        yield start


def test_on_a_terminal_the_command_has_its_keys_and_dies_with_it(
    terminal: Callable[..., Terminal],
) -> None:
    # Given a terminal's own session, in whose foreground the command reads and hears Ctrl-C
    command = (
        'trap "echo heard" INT; sleep 300 & echo pid $!; while :; do read x; echo got $x; done'
    )
    tty = terminal("--", "sh", "-c", command)
    left = int(tty.until_drawn(rb"pid (\d+)\r"))
    os.write(tty.master, b"a line\n")
    tty.until_drawn(rb"(got a line)")
    os.write(tty.master, b"\x03")
    tty.until_drawn(rb"(heard)")
    assert locks.is_locked("nightly")
    tty.process.kill()
    tty.process.wait(PATIENCE)
    until(lambda: gone(left), "the end of what the command started", PATIENCE)
    assert locks.acquire("nightly", wait=PATIENCE)


@pytest.mark.nightly
def test_what_the_command_leaves_behind_goes_on_without_the_lock(run: Run) -> None:
    # As a daemon does whose starter ends
    process = run("nightly", "--", "sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!")
    left = int(said(process))
    try:
        assert ended(process)[0] == 0
        assert not locks.is_locked("nightly")
        assert not gone(left)
    finally:
        os.kill(left, signal.SIGKILL)


def test_store_that_is_down_runs_nothing(
    run: Run, use_redis: UseRedis, own_redis_server: RedisServer, tmp_path: Path
) -> None:
    use_redis(own_redis_server.url)
    own_redis_server.kill()
    code, _, err = ended(run("nightly", "--", "touch", str(tmp_path / "ran")))
    assert code == OUTAGE
    assert "unavailable" in err
    assert not (tmp_path / "ran").exists()


@pytest.mark.nightly
def test_store_that_is_down_when_the_command_has_ended_changes_nothing(
    run: Run, use_redis: UseRedis, own_redis_server: RedisServer, tmp_path: Path
) -> None:
    """The lock was held to the end, so the command's status is what counts."""
    use_redis(own_redis_server.url)
    script = f"echo started; while [ ! -e {tmp_path}/gate ]; do sleep 0.05; done; exit 3"
    process = run("nightly", "--ttl", "300", "--", "sh", "-c", script)
    assert said(process) == "started"
    own_redis_server.kill()
    (tmp_path / "gate").touch()
    code, _, err = ended(process)
    assert code == 3
    assert "The lock ends by itself." in err


def test_wrong_arguments_run_nothing(run: Run) -> None:
    assert ended(run("nightly"))[0] == 2
    assert ended(run("bad name", "--", "true"))[0] == 2
    code, _, err = ended(run("nightly", "--ttl", "0", "--", "true"))
    assert code == 2
    assert "ttl" in err
    assert "Traceback" not in err


def test_each_outcome_cools_for_its_own_time(run: Run) -> None:
    def left() -> float:
        info = holder("nightly")
        assert info.cooling
        assert info.ttl is not None
        return info.ttl

    options = ("--cooldown", "3600", "--cooldown-after-error", "300")
    assert ended(run("nightly", *options, "--", "true"))[0] == 0
    assert 300 < left() <= 3600
    code, out, err = ended(run("nightly", *options, "--", "echo", "ran"))
    assert (code, out) == (HELD_ELSEWHERE, "")
    assert "nightly: Cooling down: it was held by " in err
    assert locks.clear("nightly")
    assert ended(run("nightly", *options, "--", "sh", "-c", "exit 3"))[0] == 3
    assert 0 < left() <= 300


def test_statuses_of_ours_are_none_that_shells_use_and_are_in_the_help() -> None:
    ours = {OUTAGE, HELD_ELSEWHERE, LOST}
    assert ours == {os.EX_UNAVAILABLE, os.EX_TEMPFAIL, os.EX_NOPERM}
    assert len(ours) == 3
    parser = load_command_class("django_tasklock", "locks").create_parser("manage.py", "locks")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        parser.parse_args(["run", "--help"])
    for status in ours:
        assert f"{status}: " in " ".join(out.getvalue().split())
