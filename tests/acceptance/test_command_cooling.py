"""``locks run`` with ``--hold-at-least``, ``--cooldown`` and ``--cooldown-after-error``."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path

import pytest

from django_tasklock import locks
from django_tasklock.cli.run_command import HELD_ELSEWHERE
from tests.acceptance.test_command_run import TRAP, Run, ended, run, said
from tests.pages import ROOT, blocks
from tests.steps import LONG, holder

__all__ = ["run"]
pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def left() -> float:
    info = holder("nightly")
    assert info.cooling
    assert info.ttl is not None
    return info.ttl


def test_two_hosts_whose_clocks_differ_run_a_short_command_once(run: Run, tmp_path: Path) -> None:
    # Given the line of docs/howto/beat-and-cron.md
    file = tmp_path / "ran"
    (block, _) = blocks(ROOT / "docs/howto/beat-and-cron.md", "text")
    words = shlex.split(block.text.partition("locks run ")[2])
    words[words.index("./daily.sh") :] = ["sh", "-c", f"echo daily >> {file}"]
    # When a host comes after the command of another one has ended
    assert ended(run(*words)) == (0, "", "")
    assert ended(run(*words)) == (0, "", "")
    # I expect it to be kept out
    assert file.read_text() == "daily\n"


def test_each_outcome_has_its_own_time(run: Run) -> None:
    options = ("--cooldown", "3600", "--cooldown-after-error", "300")
    assert ended(run("nightly", *options, "--", "true"))[0] == 0
    assert 300 < left() <= 3600
    code, out, err = ended(run("nightly", *options, "--", "echo", "ran"))
    assert (code, out) == (HELD_ELSEWHERE, "")
    assert "nightly is cooling down for 59m" in err
    assert locks.clear("nightly")
    assert ended(run("nightly", *options, "--", "sh", "-c", "exit 3"))[0] == 3
    assert 300 - LONG < left() <= 300
    assert locks.clear("nightly")
    assert ended(run("nightly", "--cooldown", "300", "--", "sh", "-c", "exit 3"))[0] == 3
    assert not locks.is_locked("nightly")


def test_a_command_that_a_signal_ends_has_failed(run: Run) -> None:
    process = run("nightly", "--cooldown-after-error", "300", "--", "sh", "-c", TRAP)
    assert said(process) == "started"
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 7
    assert left() <= 300


def test_a_lock_that_was_lost_does_not_cool(run: Run) -> None:
    process = run("nightly", "--ttl", "3", "--hold-at-least", "300", "--", "sh", "-c", TRAP)
    assert said(process) == "started"
    assert locks.clear("nightly")
    assert ended(process)[0] != 0
    assert not locks.is_locked("nightly")


def test_whoever_kills_locks_run_ends_its_lock(run: Run) -> None:
    process = run("nightly", "--hold-at-least", "300", "--", "sh", "-c", TRAP)
    assert said(process) == "started"
    process.kill()
    process.wait()
    lease = locks.acquire("nightly", wait=LONG)
    assert lease is not None
    lease.release()


@pytest.mark.parametrize("option", ["--hold-at-least", "--cooldown", "--cooldown-after-error"])
@pytest.mark.parametrize("value", ["-1", "nan", "inf", "soon"])
def test_a_time_that_cannot_be_runs_nothing(run: Run, option: str, value: str) -> None:
    code, out, err = ended(run("nightly", f"{option}={value}", "--", "echo", "ran"))
    assert (code, out) == (2, "")
    assert option in err.splitlines()[-1]
