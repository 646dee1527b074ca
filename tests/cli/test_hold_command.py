"""``manage.py locks hold``, and what the other verbs say of a lock that an operator holds."""

from __future__ import annotations

import csv
import getpass
import io
import json
import signal
import subprocess
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest
from django.core.cache import cache
from django.core.management import CommandError

from django_tasklock import locks
from django_tasklock._values.read_duration import read_ttl
from django_tasklock.cli.parsing import lock_ttl
from tests.admin.test_admin_guarded import MakeTask, make_task
from tests.cli.test_command import acquire, on_redis, run, shell
from tests.cli.test_explain import fields_of
from tests.steps import Meanwhile, holder, waiting
from tests.waiting import until

__all__ = ["make_task", "on_redis"]
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning"),
]


def test_hold_says_who_holds_it_and_for_how_long(on_redis: None) -> None:
    said = run("hold", "report", "--for", "2h", "--reason", "database migration", "--by", "alice")
    assert said == "report is held by operator alice (database migration) for 2h00m\n"
    info = holder("report")
    assert (info.held_by, info.reason, info.granted) == ("alice", "database migration", 7200)
    assert locks.acquire("report") is None


def test_the_user_of_the_shell_is_the_operator(on_redis: None) -> None:
    assert run("hold", "report", "--for", "90") == (
        f"report is held by operator {getpass.getuser()} for 1m30s\n"
    )
    assert (holder("report").held_by, holder("report").reason) == (getpass.getuser(), "")


def test_hold_as_json(on_redis: None) -> None:
    row = json.loads(run("hold", "report", "--for", "2h", "--by", "alice", "--format", "json"))
    assert (row["name"], row["held_by"], row["reason"]) == ("report", "alice", "")
    assert (row["token"], row["alive"], row["renewing"]) == (holder("report").token, None, False)


def test_a_lock_that_is_held_is_refused_and_its_holder_named(on_redis: None) -> None:
    lease = acquire("report")
    with pytest.raises(CommandError, match=rf"report is held by {lease.owner} for 9m5\ds") as error:
        run("hold", "report", "--for", "2h")
    assert error.value.returncode == 75
    assert lease.held
    lease.release()
    run("hold", "report", "--for", "2h", "--by", "alice", "--reason", "why")
    with pytest.raises(CommandError, match=r"held by operator alice \(why\) for 1h59m"):
        run("hold", "report", "--for", "3h", "--by", "alice")
    cache.add("lock:foreign", 1, timeout=None)
    with pytest.raises(CommandError, match=r"foreign is held by other code\.$"):
        run("hold", "foreign", "--for", "2h")


def test_hold_waits_for_the_present_holder(on_redis: None) -> None:
    lease = acquire("report")
    waits = Meanwhile(lambda: run("hold", "report", "--for", "2h", "--by", "al", "--wait", "60"))
    until(lambda: waiting("report") == 1)
    assert "operator al" in run("show", "report")  # among the waiters
    lease.release()
    assert waits.result() == "report is held by operator al for 2h00m\n"


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_hold_that_waits_can_be_interrupted(
    on_redis: None, process_env: Callable[[], dict[str, str]]
) -> None:
    lease = acquire("report")
    with subprocess.Popen(
        [sys.executable, "-m", "django", "locks", "hold", "report", "--for", "1d", "--wait"],
        env=process_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as command:  # fmt: skip
        until(lambda: waiting("report") == 1, "a waiter", 60)
        command.send_signal(signal.SIGINT)
        said = command.communicate(timeout=60)
    assert command.returncode == 130
    assert said == ("", "CommandError: Interrupted: report is not held for you.\n")
    # I expect the lock to be handed over to nobody
    assert lease.release()
    assert not locks.is_locked("report")


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_name_is_shown_where_its_characters_are_not_known(
    on_redis: None, process_env: Callable[[], dict[str, str]]
) -> None:
    assert locks.hold("größe:日本", 60, "李雷")
    said = shell(process_env() | {"PYTHONIOENCODING": "ascii:strict"}, "list")
    assert (said.returncode, said.stderr) == (0, "")
    assert r"gr\xf6\xdfe:\u65e5\u672c" in said.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a name", "--for", "2h"), "no spaces"),
        (("report", "--for", "2h", "--by", "al\nice"), "printable"),
        (("report", "--for", "2h", "--reason", "a" * 256), "at most 255 bytes"),
        (("report", "--for", "2h", "--wait", "-1"), "wait is None or"),
        (("report", "--for", "soon"), "not a duration such as 30s"),
        (("report", "--for", "20y"), "not a duration such as 30s"),
        (("report", "--for", "4000d"), "ten years"),
        (("report", "--for", "0"), "ttl is a number of seconds from"),
    ],
    ids=repr,
)
def test_what_cannot_be_meant_is_said(
    on_redis: None, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(CommandError, match=message):
        run("hold", *arguments)
    assert not locks.is_locked("report")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30), ("10m", 600), ("2h", 7200), ("1d", 86400), ("90", 90), ("0.5", 0.5),
        ("1h30m", 5400), ("2d03h", 183600), ("1.5h", 5400), (" 2h ", 7200),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert read_ttl(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "h", "2 h", "-1", "-2h", "1e3", "inf", "nan", "2H", "1h30", "٣h", "²", "9" * 400, "1..5s"],
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        lock_ttl(text)


def test_every_verb_says_who_holds_it(on_redis: None) -> None:
    locks.hold("report", 7200, "alice", "database migration")
    locks.hold("other", 9000)

    # The list, and what narrows it
    line = run("list", "report").splitlines()[1].split("  ")
    assert [cell.strip() for cell in line if cell][-4:] == ["operator alice", "-", "-", "-"]
    assert "an operator" in run("list", "other")
    assert "report" in run("list", "--owner", "ali*")
    assert "report" not in run("list", "--owner", "bob")
    (row,) = json.loads(run("list", "report", "--format", "json"))
    assert (row["held_by"], row["reason"]) == ("alice", "database migration")
    (row,) = csv.DictReader(io.StringIO(run("list", "report", "--format", "csv")))
    assert (row["held_by"], row["reason"], row["pid"]) == ("alice", "database migration", "")

    # All that is known of it
    shown = fields_of(run("show", "report"))
    assert (shown["held by"], shown["reason"]) == ("operator alice", "database migration")
    assert (shown["process"], shown["renewed"]) == ("-", "no")
    acquire("video:1")
    assert "held by:" not in run("show", "video:1")

    # Nobody takes it for a lock whose owner is gone
    assert "No lock's owner" in run("clear", "--owner-gone", "--noinput")
    assert "owner gone" not in run("doctor")
    assert "cleared report, held by operator alice (database migration)" in run("clear", "report")


def test_explain_says_who_holds_it_why_and_until_when(on_redis: None, make_task: MakeTask) -> None:
    task = make_task("job:{job_id}")
    locks.hold("job:7", 7200, "alice", "database migration")
    said = fields_of(run("explain", task.name, "[7]"))["held now"]
    before, _, ends = said.partition(" until ")
    assert before == "by operator alice (database migration)"
    moment, _, left = ends.partition(" (")
    assert left == "1h59m)"
    expected = datetime.now(timezone.utc) + timedelta(hours=2)
    assert abs(datetime.fromisoformat(moment) - expected) < timedelta(minutes=1)
    held = json.loads(run("explain", task.name, "[7]", "--format", "json"))["held"]
    assert (held["owner"]["held_by"], held["owner"]["reason"]) == ("alice", "database migration")
