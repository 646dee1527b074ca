"""``manage.py locks run``: real processes, and real signals."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import django_tasklock
from django_tasklock import locks
from tests.command import shell
from tests.conftest import UseCaches, UseRedis
from tests.nights import by_day
from tests.quorum import use_memory
from tests.servers import RedisServer
from tests.stage.workers import gone
from tests.steps import LONG, Meanwhile, holder, taken, waiting
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
PATIENCE = 90.0
"""seconds; each process imports Django on a machine that may be busy"""
OUTAGE, HELD_ELSEWHERE, LOST = os.EX_UNAVAILABLE, os.EX_TEMPFAIL, os.EX_NOPERM
"""exit statuses of ours, which shells do not use"""
Run = Callable[..., "subprocess.Popen[str]"]
GATE = "while [ ! -e $0 ]; do sleep 0.05; done"
"""goes on when the file is there that is the first argument after the script"""
TOLD = "trap 'echo told >&2; {then}' TERM; echo started; while :; do sleep 0.05; done"


@pytest.fixture
def run(use_redis: UseRedis, process_env: Callable[[], dict[str, str]]) -> Iterator[Run]:
    """``run("name", "--", "command")``: the command in a process of its own; ``through``: a command
    that starts it, in a session of its own."""
    use_redis()
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, through: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*through, sys.executable, "-m", "django", "locks", "run", *arguments],
            env=process_env(), text=True, start_new_session=bool(through),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
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


def test_command_runs_under_the_lock_and_its_output_is_its_own(run: Run, tmp_path: Path) -> None:
    gate, script = tmp_path / "gate", f"echo started; {GATE}; echo $1"
    process = run("nightly", "--ttl", "20", "--", "sh", "-c", script, str(gate), "--x")
    assert said(process) == "started"
    info = holder("nightly")
    # I expect the command as the task, without the folder of its program
    assert info.owner.pid == process.pid
    assert info.owner.task == f"locks run {shlex.join(['sh', '-c', script, str(gate), '--x'])}"
    assert (info.granted, info.renewing) == (20, True)
    gate.touch()
    assert ended(process) == (0, "--x\n", "")
    assert not locks.is_locked("nightly")


def test_exit_status_is_the_commands(run: Run, tmp_path: Path) -> None:
    expected = {
        ("sh", "-c", "exit 3"): (3, ""),
        ("sh", "-c", "kill -KILL $$"): (128 + signal.SIGKILL, ""),
        ("no-such-command-here",): (127, "no-such-command-here: No such file or directory\n"),
        (str(tmp_path),): (126, f"{tmp_path}: Permission denied\n"),
    }
    started = [run(f"nightly:{number}", "--", *command) for number, command in enumerate(expected)]
    found = dict(zip(expected, map(ended, started), strict=True))
    assert {command: (code, err) for command, (code, _, err) in found.items()} == expected
    assert locks.list() == []


def test_of_many_one_runs(run: Run, tmp_path: Path) -> None:
    # Given three hosts' cron at the same moment
    ran, gate = tmp_path / "ran", tmp_path / "gate"
    command = ("--", "sh", "-c", f"echo ran >> {ran}; {GATE}", str(gate))
    processes = [run("nightly", "--conflict-exit-code", "9", *command) for _ in range(3)]
    until(lambda: sum(process.poll() is None for process in processes) == 1, "one", PATIENCE)
    gate.touch()
    results = [ended(process) for process in processes]
    # I expect one to have run, and the others to have said why they did not
    assert sorted(code for code, _, _ in results) == [0, 9, 9]
    assert ran.read_text() == "ran\n"
    for code, _, err in results:
        assert bool(re.search(r"nightly: Held by \S+:\d+, task locks run sh", err)) == (code == 9)


def test_an_outcome_that_was_asked_to_be_0_is_no_error(run: Run) -> None:
    taken("nightly", ttl=LONG)
    for quiet, said in ((), r"nightly: Held by .*\n"), (("-v", "0"), ""):
        process = run("nightly", "--conflict-exit-code", "0", *quiet, "--", "echo", "ran")
        code, out, err = ended(process)
        assert (code, err) == (0, "")
        assert re.fullmatch(said, out)


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


def test_a_signal_that_comes_before_the_command_is_there_ends_it() -> None:
    # Given the process between the two, which has not been told yet to start the command
    link, theirs = socket.socketpair()
    file = Path(django_tasklock.__file__).with_name("cli") / "group_leader.py"
    leader = subprocess.Popen(
        [sys.executable, file, str(theirs.fileno()), "sleep", "300"],
        pass_fds=[theirs.fileno()], start_new_session=True,
    )  # fmt: skip
    theirs.close()
    status = Path(f"/proc/{leader.pid}/status")

    def heeds_signals() -> int:
        caught = int(status.read_text().partition("SigCgt:")[2].split()[0], 16)
        return caught & 1 << signal.SIGTERM - 1

    # I expect a signal that comes now not to be lost
    with link:
        until(heeds_signals, "its handler", PATIENCE)
        os.killpg(leader.pid, signal.SIGTERM)
        link.send(b"1")
        assert leader.wait(PATIENCE) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("lose", "then", "says"),
    [
        ("clear", ":", "nightly was lost: the command gets SIGTERM."),
        ("store gone", "exit 0", "the command gets SIGTERM"),
    ],
)
def test_a_lost_lock_ends_the_command_also_one_that_goes_on_and_it_is_no_success(
    run: Run, use_redis: UseRedis, own_redis_server: RedisServer, lose: str, then: str, says: str
) -> None:
    # Given a command whose lock is cleared, or whose store goes away
    use_redis(own_redis_server.url)
    script = TOLD.format(then=then)
    process = run("nightly", "--ttl", "3", "--kill-after", "0.5", "--", "sh", "-c", script)
    assert said(process) == "started"
    if lose == "clear":
        assert locks.clear("nightly")
    else:
        own_redis_server.kill()

    # I expect it to be told, and to be ended
    code, _, err = ended(process)
    assert code == LOST
    assert says in err
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
def test_leader_of_the_group_that_is_killed_takes_the_command_with_it(run: Run) -> None:
    process = run("nightly", "--ttl", "600", "--", "sh", "-c", "sleep 300 & echo $!; wait")
    child = int(said(process))
    group = holder("nightly").owner.group
    assert group == os.getpgid(child)
    os.kill(group, signal.SIGKILL)
    assert ended(process)[0] == 128 + signal.SIGKILL
    assert gone(child)
    assert not locks.is_locked("nightly")


def test_on_a_terminal_the_command_has_its_keys_and_dies_with_it(run: Run) -> None:
    # Given a terminal's own session, in whose foreground the command reads and hears Ctrl-C
    keyboard, screen = pty.openpty()
    command = (
        'trap "echo heard" INT; sleep 300 & echo pid $!; while :; do read x; echo got $x; done'
    )
    there = ("sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', os.ttyname(screen))
    process = run("nightly", "--ttl", "600", "--", "sh", "-c", command, through=there)
    drawn = b""

    def until_drawn(pattern: bytes) -> bytes:
        nonlocal drawn
        while not (found := re.search(pattern, drawn)):
            drawn += os.read(keyboard, 4096)
        return found[1]

    left = int(until_drawn(rb"pid (\d+)\r"))
    os.write(keyboard, b"a line\n")
    until_drawn(rb"(got a line)")
    os.write(keyboard, b"\x03")
    until_drawn(rb"(heard)")
    assert locks.is_locked("nightly")
    process.kill()
    process.wait(PATIENCE)
    until(lambda: gone(left), "the end of what the command started", PATIENCE)
    assert locks.acquire("nightly", wait=PATIENCE)
    os.close(keyboard)
    os.close(screen)


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
    gate, script = tmp_path / "gate", f"echo started; {GATE}; exit 3"
    process = run("nightly", "--ttl", "300", "--", "sh", "-c", script, str(gate))
    assert said(process) == "started"
    own_redis_server.kill()
    gate.touch()
    code, _, err = ended(process)
    assert code == 3
    assert "The lock was not released; it ends by itself: " in err


def test_with_its_stderr_closed_it_ends_as_with_an_open_one(
    run: Run, use_redis: UseRedis, own_redis_server: RedisServer, tmp_path: Path
) -> None:
    # Given commands that are run without a stderr, as some daemons have none
    use_redis(own_redis_server.url)
    closed, gate = ("sh", "-c", 'exec "$@" 2>&-', "sh"), tmp_path / "gate"
    told = "trap 'echo told; exit 3' TERM; echo started; while :; do sleep 0.05; done"
    lost = run("lost", "--ttl", "3", "--", "sh", "-c", told, through=closed)
    kept = run("kept", "--", "sh", "-c", f"echo started; {GATE}", str(gate), through=closed)
    assert [said(lost), said(kept)] == ["started", "started"]
    absent = run("absent", "--", "no-such-command-here", through=closed)
    refused = run("kept", "--", "true", through=closed)

    # I expect the statuses that they have with one, and SIGTERM first
    assert [ended(absent)[0], ended(refused)[0]] == [127, HELD_ELSEWHERE]
    assert locks.clear("lost")
    assert ended(lost)[:2] == (LOST, "told\n")
    own_redis_server.kill()
    gate.touch()
    assert ended(kept)[0] == 0


def test_wrong_arguments_run_nothing(run: Run) -> None:
    wrong = [["nightly"], ["bad name", "--", "true"], ["nightly", "--ttl", "0", "--", "true"]]
    for code, _, err in map(ended, [run(*arguments) for arguments in wrong]):
        assert code == 2
        assert "Traceback" not in err
    assert "ttl" in err


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
    assert "nightly: Cooling down, last held by " in err
    assert locks.clear("nightly")
    assert ended(run("nightly", *options, "--", "sh", "-c", "exit 3"))[0] == 3
    assert 0 < left() <= 300


@pytest.mark.parametrize("verb", ["run", "lead"])
def test_a_ttl_that_is_too_long_for_the_store_is_an_error(
    use_caches: UseCaches, process_env: Callable[[], dict[str, str]], verb: str
) -> None:
    use_memory(use_caches, LONGEST_TTL=100.0)
    done = shell(process_env(), verb, "x", "--ttl", "600", "--", "echo", "ran")
    said = "CommandError: ttl must be at most 100 s (LONGEST_TTL of the lock store 'default'), not "
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{said}600 s.\n")
