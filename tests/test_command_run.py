"""``manage.py locks run``: real processes, and real signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from django_tasklock import locks
from example_project.servers import RedisServer
from tests.conftest import UseRedis
from tests.steps import until, waiting

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


def test_command_runs_under_the_lock_and_its_output_is_its_own(run: Run) -> None:
    process = run("nightly", "--ttl", "20", "--", "sh", "-c", "echo started; cat; echo $0", "--x")
    assert said(process) == "started"
    code, out, err = ended(process)
    assert (code, out, err) == (0, "--x\n", "")
    assert not locks.is_locked("nightly")


def test_lock_is_held_and_says_by_what(run: Run) -> None:
    process = run("nightly", "--ttl", "20", "--", "sh", "-c", TRAP)
    assert said(process) == "started"
    info = locks.get("nightly")
    assert info is not None
    assert (info.owner.pid, info.owner.task) == (process.pid, "locks run sh")
    assert (info.granted, info.renewing) == (20, True)


@pytest.mark.parametrize(
    ("script", "expected"),
    [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)],
)
def test_exit_status_is_the_commands(run: Run, script: str, expected: int) -> None:
    code, _, err = ended(run("nightly", "--", "sh", "-c", script))
    assert code == expected
    assert err == ""
    assert not locks.is_locked("nightly")


def test_command_that_is_not_there(run: Run, tmp_path: Path) -> None:
    code, _, err = ended(run("nightly", "--", "no-such-command-here"))
    assert code == 127
    assert err == "no-such-command-here: No such file or directory\n"
    code, _, err = ended(run("nightly", "--", str(tmp_path)))
    assert code == 126
    assert not locks.is_locked("nightly")


def test_of_many_one_runs(run: Run, tmp_path: Path) -> None:
    # Given five hosts' cron at the same moment
    file = tmp_path / "ran"
    script = f"echo ran >> {file}; sleep 6"
    processes = [
        run("nightly", "--conflict-exit-code", "9", "--", "sh", "-c", script) for _ in range(4)
    ]
    results = [ended(process) for process in processes]
    # I expect one to have run, and the others to have said why they did not
    assert sorted(code for code, _, _ in results) == [0, 9, 9, 9]
    assert file.read_text() == "ran\n"
    for code, _, err in results:
        assert bool(re.search(r"nightly is held by pid \d+ on ", err)) == (code == 9)


def test_conflict_may_be_silent_and_a_success(run: Run) -> None:
    lease = locks.acquire("nightly", ttl=60)
    assert lease
    quiet = ended(run("nightly", "--conflict-exit-code", "0", "-v", "0", "--", "echo", "ran"))
    assert quiet == (0, "", "")
    code, out, _ = ended(run("nightly", "--", "echo", "ran"))
    assert (code, out) == (1, "")


def test_it_waits_for_its_turn(run: Run) -> None:
    lease = locks.acquire("nightly", ttl=120)
    assert lease
    process = run("nightly", "--wait", "--", "echo", "ran")
    until(lambda: waiting("nightly"), "somebody waits", PATIENCE)
    lease.release()
    assert ended(process)[:2] == (0, "ran\n")


def test_lease_is_renewed_while_the_command_runs(run: Run) -> None:
    process = run("nightly", "--ttl", "2", "--", "sh", "-c", TRAP)
    assert said(process) == "started"
    held = locks.get("nightly")
    assert held is not None
    # For three times its ttl it is the same lease
    end = time.monotonic() + 6
    while time.monotonic() < end:
        info = locks.get("nightly")
        assert info is not None
        assert info.token == held.token
        time.sleep(0.1)
    process.terminate()
    assert ended(process)[0] == 7


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_signals_are_passed_on(run: Run, name: str) -> None:
    short = name.removeprefix("SIG")
    script = f"trap 'echo got {short}; exit 5' {short}; echo started; while :; do sleep 0.05; done"
    process = run("nightly", "--", "sh", "-c", script)
    assert said(process) == "started"
    process.send_signal(getattr(signal, name))
    code, out, _ = ended(process)
    assert (code, out) == (5, f"got {short}\n")
    assert not locks.is_locked("nightly")


def test_signal_that_ends_the_command_is_its_status(run: Run) -> None:
    process = run("nightly", "--", "sh", "-c", "echo started; exec sleep 300")
    assert said(process) == "started"
    process.terminate()
    assert ended(process)[0] == 128 + signal.SIGTERM
    assert not locks.is_locked("nightly")


def test_signals_reach_what_the_command_started(run: Run) -> None:
    process = run("nightly", "--", "sh", "-c", "sleep 300 & echo $!; wait")
    grandchild = int(said(process))
    process.terminate()
    ended(process)
    until(lambda: gone(grandchild), "the end of what the command started", PATIENCE)


def test_signal_while_it_waits_ends_it_and_the_line_goes_on(run: Run) -> None:
    lease = locks.acquire("nightly", ttl=120)
    assert lease
    process = run("nightly", "--wait", "--", "echo", "ran")
    until(lambda: waiting("nightly"), "somebody waits", PATIENCE)
    process.terminate()
    code, out, _ = ended(process)
    assert (code, out) == (128 + signal.SIGTERM, "")
    lease.release()
    assert not locks.is_locked("nightly")


def test_lost_lease_tells_the_command_and_is_no_success(run: Run) -> None:
    # Given a command that is cleared by an operator while it runs
    process = run("nightly", "--ttl", "3", "--", "sh", "-c", TRAP.replace("exit 7", "exit 0"))
    assert said(process) == "started"
    assert locks.clear("nightly")
    # I expect it to be told, and that it ended well not to count
    code, _, err = ended(process)
    assert code == 1
    assert "nightly was lost: the command is told to end." in err
    assert "told" in err.splitlines()


def test_command_that_does_not_listen_is_killed(run: Run) -> None:
    process = run("nightly", "--ttl", "3", "--kill-after", "0.5", "--", "sh", "-c", STUBBORN)
    assert said(process) == "started"
    assert locks.clear("nightly")
    assert ended(process)[0] == 128 + signal.SIGKILL


def test_lock_cleared_in_the_last_moment_is_no_success(run: Run) -> None:
    # Given a command that ends well before any renewal could have noticed
    process = run("nightly", "--ttl", "600", "--", "sh", "-c", "echo started; read line; sleep 1")
    assert said(process) == "started"
    assert locks.clear("nightly")
    code, _, err = ended(process)
    assert code != 0
    assert "nightly was lost while the command ran." in err


def test_store_that_is_gone_ends_the_command_with_the_lease(
    run: Run, use_redis: UseRedis, own_redis_server: RedisServer
) -> None:
    use_redis(own_redis_server.url)
    process = run("nightly", "--ttl", "3", "--", "sh", "-c", TRAP)
    assert said(process) == "started"
    own_redis_server.kill()
    code, _, err = ended(process)
    assert code == 7
    assert "the command is told to end" in err


def test_command_dies_with_it(run: Run) -> None:
    # Given a run whose own process is killed: nobody renews its lease any more
    process = run("nightly", "--", "sh", "-c", "echo $$; while :; do sleep 0.05; done")
    child = int(said(process))
    process.kill()
    # I expect its command not to work on, since another takes the lock at once
    until(lambda: gone(child), "the end of the command", PATIENCE)
    # (the last thread of a killed process may be a moment behind its first).
    lease = locks.acquire("nightly", ttl=60, wait=PATIENCE)
    assert lease


def test_store_that_is_down_runs_nothing(
    run: Run, use_redis: UseRedis, own_redis_server: RedisServer, tmp_path: Path
) -> None:
    use_redis(own_redis_server.url)
    own_redis_server.kill()
    code, _, err = ended(run("nightly", "--", "touch", str(tmp_path / "ran")))
    assert code == 1
    assert "unavailable" in err
    assert not (tmp_path / "ran").exists()


def test_wrong_arguments_run_nothing(run: Run) -> None:
    assert ended(run("nightly"))[0] == 2
    assert ended(run("bad name", "--", "true"))[0] == 1
    code, _, err = ended(run("nightly", "--ttl", "0", "--", "true"))
    assert code == 1
    assert "ttl" in err
    assert "Traceback" not in err


def test_pipes_end_a_command_as_they_do_elsewhere(run: Run) -> None:
    # A command whose reader went away dies of SIGPIPE, and does not go on for ever
    process = run("nightly", "--", "sh", "-c", "yes | head -1")
    assert ended(process)[:2] == (0, "y\n")
