"""``manage.py locks``: in this process where that is enough, else as a shell would run it."""

from __future__ import annotations

import getpass
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from unicodedata import east_asian_width

import pytest
from django.core.cache import caches
from django.core.management import CommandError, call_command

from django_tasklock import locks
from tests.admin.conftest import taken
from tests.command import run, run_json, shell
from tests.conftest import UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, holder, orphan, waiter, waiting
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("on_redis")
KEYS = [
    "name", "ttl", "acquired_at", "owner", "token", "store", "key",
    "fence", "waiters", "longest_wait", "renewing", "held_by", "reason", "slot", "cooling", "alive",
]  # fmt: skip


def names(*arguments: str) -> list[str]:
    return [row["name"] for row in run_json("list", *arguments)]


# ------------------------------------------------------------------------------ list


def test_list_is_aligned_lines_soonest_to_expire_first_without_empty_columns() -> None:
    # Given two locks of this process
    taken("video:123", 86490)
    taken("report", 7370)
    me = f"{holder('report').owner.host}:{os.getpid()}"

    # I expect a line for each, and no column that would be empty: nobody waits, and no task runs
    header, *rows = (line.split() for line in run("list").splitlines())
    assert header == ["NAME", "TTL", "HELD", "BY", "STATE", "AGE"]
    assert [row[:4] for row in rows] == [
        ["report", "2h02m", me, "alive"], ["video:123", "1d00h", me, "alive"],
    ]  # fmt: skip


def test_list_is_narrowed_and_limited() -> None:
    taken("video:1", 600, task="videos.transcode")
    taken("video:2", 300, task="videos.probe")
    taken("report", 900, task="reports.daily")
    assert locks.hold("deploy", 60, "anna") is not None
    assert names() == ["deploy", "video:2", "video:1", "report"]
    assert names("video:") == ["video:2", "video:1"]
    assert names("--task", "videos.*") == ["video:2", "video:1"]
    assert names("--task", "videos.*", "--limit", "1") == ["video:2"]
    assert names("--limit", "2") == ["deploy", "video:2"]


def test_list_of_nothing_says_whether_anything_was_chosen(use_redis: UseRedis) -> None:
    use_redis()
    assert run("list") == "No locks.\n"
    taken("video:1")
    assert run("list", "nosuch") == run("list", "--task", "nosuch") == "No locks match.\n"
    assert names("nosuch") == []


def test_rows_for_programs() -> None:
    lease = taken("video:1", task="videos.transcode", task_id="0a1b")
    (row,) = run_json("list")
    assert list(row) == KEYS
    assert (row["name"], row["token"], row["owner"]["task_id"]) == ("video:1", lease.token, "0a1b")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def cells(line: str) -> int:
    """How many it takes: a Chinese character takes two."""
    return sum(1 + (east_asian_width(each) == "W") for each in line)


def test_a_terminal_of_80_columns_gets_what_is_long_on_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["video:1", "视频:" + "7" * 197]
    for name in names:
        taken(name, task="videos.tasks." + "转码" * 19, task_id="0a1b" * 8)
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    call_command("locks", "list", stdout=terminal)
    *lines, last = terminal.getvalue().splitlines()
    task = f"videos.tasks.{'转码' * 19}[{'0a1b' * 8}]"
    assert [lines[0], lines[2], lines[4]] == ["NAME  TASK", *(f"{name}  {task}" for name in names)]
    assert all(cells(line) <= 80 for line in (lines[1], lines[3], last))
    # And where all fits, a lock is one line
    monkeypatch.setenv("COLUMNS", "400")
    call_command("locks", "list", stdout=(terminal := Terminal()))
    assert len(terminal.getvalue().splitlines()) == 3


def test_locks_are_listed_by_their_state_and_their_age() -> None:
    orphan("z-gone:1")
    taken("b:1")
    assert locks.hold("a-hold:1", 30, by="alice") is not None
    shown = {
        state: [row["name"] for row in run_json("list", "--state", state, "--sort", "age")]
        for state in ("gone", "held", "operator", "overdue")
    }
    assert shown == {
        "gone": ["z-gone:1"], "held": ["z-gone:1", "b:1"], "operator": ["a-hold:1"],
        "overdue": [],
    }  # fmt: skip
    # Also where others end sooner
    assert run_json("list", "--limit", "1")[0]["name"] == "a-hold:1"
    assert len(run_json("list", "--state", "held", "--limit", "1")) == 1
    assert run("list", "--state", "overdue") == "No locks match.\n"
    ages = [row["name"] for row in run_json("list", "--sort", "age", "--limit", "2")]
    assert ages == ["z-gone:1", "b:1"]
    with pytest.raises(CommandError, match="invalid choice: 'late'"):
        run("list", "--state", "late")


# ------------------------------------------------------------------------------ show


def test_show_says_it_in_a_sentence_and_then_what_is_known() -> None:
    lease = taken("video:1", task="videos.transcode", task_id="0a1b")
    first = waiter("video:1", 1)
    said = run("show", "video:1")
    assert said.startswith("Held by ")
    assert "task videos.transcode" in said.splitlines()[0]
    fields = dict(line.split(":", 1) for line in said.splitlines() if ": " in line)
    assert (fields["token"].strip(), fields["task_id"].strip()) == (lease.token, "0a1b")
    assert "held_by" not in fields
    assert "Wait queue:" in said
    found = run_json("show", "video:1")
    assert set(KEYS) < set(found)
    assert (found["row"], len(found["waiting"])) == (None, 1)

    # And who waits to be shown also when the key of the lock is gone
    caches["default"].delete(f"lock:{lease.name}")
    said = run("show", "video:1")
    assert said.startswith("video:1 itself is not locked.")
    assert "Wait queue:" in said
    found = run_json("show", "video:1")
    assert (found["permits"], len(found["waiting"])) == ([], 1)
    assert locks.acquire("video:1") is None  # The first of the queue gets it.
    first.result()


# ------------------------------------------------------------------------------ hold


def test_a_hold_says_who_holds_it_and_a_held_lock_is_refused() -> None:
    said = run("hold", "nightly", "--for", "2h", "--reason", "a migration", "--by", "anna")
    assert said.startswith("nightly: Held by operator anna, reason: a migration, ")
    with pytest.raises(CommandError, match="nightly: Held by operator anna") as refused:
        run("hold", "nightly", "--for", "1h")
    assert refused.value.returncode == 75


def test_a_hold_waits_for_the_present_holder() -> None:
    lease = taken("nightly", ttl=LONG)
    operator = Meanwhile(lambda: run("hold", "nightly", "--for", "2h", "--wait", "--format=json"))
    until(lambda: waiting("nightly") == 1)
    lease.release()
    assert json.loads(operator.result())["held_by"] == getpass.getuser()


# ------------------------------------------------------------------------------ all verbs


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("list --limit=0", "must be a whole number of at least 1, not '0'"),
        ("list --limit=-1", "must be a whole number of at least 1, not '-1'"),
        ("list --limit=x", "must be a whole number of at least 1, not 'x'"),
        ("list --store third", "third"),
        ("doctor --store third", "third"),
        ("hold a --for soon", "argument --for: "),
        ("clear --noinput", "Say which"),
        ("clear --noinput a --all", "not allowed with argument NAME"),
        ("clear --noinput --prefix=", "must have 1 to 200"),
        ("clear --noinput --prefix a --task b", "not allowed with argument --prefix"),
        ("clear --noinput --queued --owner-gone", "no process holds them"),
    ],
)
def test_what_cannot_be_meant_is_an_error(line: str, reason: str) -> None:
    taken("a")
    with pytest.raises(CommandError, match=reason):
        run(*line.split())
    assert locks.is_locked("a")


@pytest.mark.parametrize("name", ["a b", "a\x1b[2J", "x" * 201])
def test_a_bad_name_is_one_sentence(name: str) -> None:
    for verb in (["show"], ["clear", "--noinput"], ["history"], ["hold", "--for", "1h"]):
        with pytest.raises(CommandError, match="a lock's name"):
            run(*verb, name)


def test_an_outage_is_an_error_of_its_own(
    use_redis: UseRedis, own_redis_server: RedisServer
) -> None:
    use_redis(own_redis_server.url)
    own_redis_server.kill()
    for line in ("list", "show a", "clear a", "history", "hold a --for=1h"):
        with pytest.raises(CommandError, match="unavailable"):
            run(*line.split())


def test_a_store_that_cannot_list_says_so(on_locmem: None) -> None:
    assert locks.acquire("video:1", ttl=60)
    for line in ("list", "clear --all", "list --queued", "history"):
        with pytest.raises(CommandError, match=r"cannot (list|keep a history of) its "):
            run(*line.split())
    assert "Held by" in run("show", "video:1")


def test_what_others_wrote_never_reaches_a_terminal_raw() -> None:
    record = {"host": "a\x1b[2Jb", "pid": 7, "task": "x\ny"}
    locks.store.acquire(["video:1"], "t" * 22, 60, record)
    for arguments in (["list"], ["show", "video:1"], ["clear", "--all", "--dry-run"]):
        assert run(*arguments).replace("\n", "").isprintable()


def test_a_reader_that_has_gone_ends_it_without_a_word(
    process_env: Callable[[], dict[str, str]],
) -> None:
    for number in range(400):
        taken(f"video:{number}", task="videos." + "transcode" * 40)
    command = f"{sys.executable} -m django locks list | head -1"
    done = subprocess.run(["sh", "-c", command], env=process_env(), capture_output=True)
    assert done.stdout.startswith(b"NAME")
    assert done.stderr == b""


def test_an_output_that_cannot_be_written_is_an_error(
    process_env: Callable[[], dict[str, str]],
) -> None:
    with open("/dev/full", "w") as full:
        done = shell(process_env(), "list", stdout=full)
    assert done.returncode == 1
    assert "could not be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "verb", ["list", "show", "history", "doctor", "explain", "clear", "hold", "run", "lead"]
)
def test_help_fits_80_columns_and_has_an_example(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        call_command("locks", verb, "--help")
    said = capsys.readouterr().out
    assert f"manage.py locks {verb}" in said.partition("examples:\n")[2]
    assert max(map(len, said.splitlines())) <= 80
    # And the exit statuses of ours, which shells do not use
    statuses = (os.EX_UNAVAILABLE, os.EX_TEMPFAIL, os.EX_NOPERM) if verb == "run" else ()
    assert all(f"{status}: " in " ".join(said.split()) for status in statuses)


def test_djangos_options_may_follow_the_verb() -> None:
    assert run("list", "--settings", "tests.settings", "--no-color") == "No locks.\n"
