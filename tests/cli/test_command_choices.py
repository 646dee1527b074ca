"""Which locks ``manage.py locks`` lists and clears, and what it shows of one."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.core.management import CommandError
from django.core.management.base import BaseCommand
from redis import Redis

from django_tasklock import LockService, locks
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.cli import streaming
from django_tasklock.cli.select import streamed
from django_tasklock.cli.streaming import pieces_of
from django_tasklock.operators import work
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant
from django_tasklock.stores.redis import walking
from tests.admin.test_admin_guarded import MakeTask, held_by, make_task
from tests.app.models import Job
from tests.cli.test_command import acquire, answering, on_redis, run
from tests.conftest import UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, orphan
from tests.waiting import PATIENCE, until

__all__ = ["make_task", "on_redis"]
pytestmark = pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
VERBS = ("list", "show", "clear", "doctor", "explain", "run")


def names(*arguments: str) -> list[str]:
    return [row["name"] for row in json.loads(run("list", "--format", "json", *arguments))]


@pytest.fixture
def some(on_redis: None) -> None:
    acquire("b", 300, task="videos.publish")
    acquire("c", 20, task="videos.transcode")
    acquire("a", 200, task="reports.build")


# ------------------------------------------------------------------------------ list


def test_an_interrupted_question_clears_nothing(
    some: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    answering(monkeypatch, "", interrupt)
    with pytest.raises(CommandError, match="Nothing was cleared") as raised:
        run("clear", "--all")
    assert raised.value.returncode == 130
    assert locks.count() == 3


def test_no_pattern_finds_what_has_no_task_or_no_process(some: None) -> None:
    """An operator's hold. An empty ``--task`` may be a variable that is not set."""
    locks.hold("migration", ttl=600, by="alice", reason="database")
    assert "migration" not in names("--task", "*")
    assert names("--task", "") == []
    assert names("--owner", "None") == names("--owner", "N*") == []
    run("clear", "--task", "*", "--noinput")
    assert locks.is_locked("migration")


def test_list_by_task_owner_and_expiry(some: None) -> None:
    owner = locks.list()[0].owner
    assert names("--task", "videos.transcode") == ["c"]
    assert names("--task", "videos.*") == ["c", "b"]
    assert names("--task", "videos") == []
    assert names("--owner", f"{owner.host}") == names("--owner", str(owner.pid)) == ["c", "a", "b"]
    assert names("--owner", f"{owner.host}:{owner.pid}") == ["c", "a", "b"]
    assert names("--owner", "elsewhere") == []
    assert names("--expiring", "60") == ["c"]
    assert names("b", "--task", "videos.*") == ["b"]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("ttl", "cab"), ("-ttl", "bac"), ("name", "abc"), ("-name", "cba"),
        ("age", "acb"), ("-age", "bca"),
    ],
)  # fmt: skip
def test_list_sorted(some: None, sort: str, expected: str) -> None:
    assert names(f"--sort={sort}") == list(expected)
    assert names(f"--sort={sort}", "--limit", "2") == list(expected[:2])
    assert names("--sort", sort, "--limit", "2") == list(expected[:2])
    assert names("--limit", "2", "--sort", sort) == list(expected[:2])


def test_order_by_age_is_not_that_of_the_looks(
    on_redis: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However close the leases began to each other, and however slowly they are compared."""
    acquire("a")
    info = locks.get("a")
    assert info is not None
    assert info.acquired_at is not None
    began = info.acquired_at
    close = [
        replace(info, name=str(number), acquired_at=began + timedelta(microseconds=number))
        for number in range(1000)
    ]
    random.Random(1).shuffle(close)
    monkeypatch.setattr(LockService, "list", lambda *_, **__: close)
    assert list(map(int, names("--sort=-age"))) == list(range(1000))


def test_limit_reads_no_more_than_it_shows(
    use_redis: UseRedis, own_redis_server: RedisServer
) -> None:
    use_redis(own_redis_server.url)
    for number in range(300):
        acquire(f"job:{number}", 100 + number)
    run("list", "--limit", "3")
    before = keys_read(own_redis_server)
    assert len(names("--limit", "3")) == 3
    # The three records, and a few looks at the index and the fences
    assert keys_read(own_redis_server) - before < 20
    before = keys_read(own_redis_server)
    assert len(names()) == 300
    assert keys_read(own_redis_server) - before > 300
    assert names("--limit", "0") == []
    with pytest.raises(CommandError):
        run("list", "--limit", "-1")


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_first_lines_come_before_the_rest_is_read(
    use_redis: UseRedis,
    own_redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
) -> None:
    monkeypatch.setattr(walking, "FIRST_NAMES", 50)
    monkeypatch.setattr(walking, "NAMES_PER_WINDOW", 100)
    monkeypatch.setattr(streaming, "FIRST_ROWS", 50)
    use_redis(own_redis_server.url)
    for number in range(700):
        acquire(f"job:{number}", 50 + 10 * number)
    acquire("job:" + "long" * 20, 9000)
    command: Any = BaseCommand(stdout=io.StringIO())
    options = {
        "prefix": "", "limit": None, "sort": "ttl", "scan": False, "task": None, "owner": None,
        "expiring": None, "format": form, "no_color": True,
    }  # fmt: skip
    before = keys_read(own_redis_server)
    pieces = pieces_of(streamed(locks, options), command, options)
    first = next(pieces)
    # The first records, and their fences: not those of all others
    assert 0 < keys_read(own_redis_server) - before < 200
    text = first + "".join(pieces)
    if form == "json":
        assert [row["name"] for row in json.loads(text)] == [info.name for info in locks.list()]
        return
    lines = text.splitlines()
    assert len(lines) == 702
    assert [re.split("[ ,]", line)[0] for line in lines[1:]] == [i.name for i in locks.list()]
    if form == "table":
        # A longer name moves the rest of its own line only
        column = lines[0].index("HELD BY")
        holder = lines[1][column:].split()[0]
        assert all(line[column:].startswith(holder) for line in lines[1:-1])
        assert not lines[-1][column:].startswith(holder)


def keys_read(server: RedisServer) -> int:
    """How many keys commands have found, one of several keys counted for each."""
    with Redis.from_url(server.url) as client:
        return int(client.info("stats")["keyspace_hits"])


def test_scan_finds_what_no_lease_set(on_redis: None) -> None:
    acquire("ours", 100)
    cache.add("lock:legacy", 1, 50)
    cache.add("lock:forever", 1, timeout=None)
    cache.add("no-lock", 1)
    assert names() == ["ours"]
    assert names("--scan") == ["legacy", "ours", "forever"]
    assert names("leg", "--scan") == ["legacy"]
    assert "never" in run("list", "--scan")


def test_token_is_no_formula_in_csv(on_redis: None) -> None:
    token = "-" + new_token()[1:]
    stores["default"].acquire("video:1", token, LONG, owner_record())
    (row,) = csv.DictReader(io.StringIO(run("list", "--format", "csv")))
    assert row["token"] == token


def test_list_as_csv(on_redis: None) -> None:
    lease = acquire("video:1,2", task='=HYPERLINK("x")')
    (row,) = csv.DictReader(io.StringIO(run("list", "--format", "csv")))
    assert (row["name"], row["pid"], row["token"]) == (
        "video:1,2", str(lease.owner.pid), lease.token
    )  # fmt: skip
    assert row["alive"] == "True"
    assert row["task"] == '\'=HYPERLINK("x")'  # not a formula any more
    assert 0 < float(row["ttl"]) <= 600


def test_list_as_csv_of_nothing_has_its_headers(on_redis: None) -> None:
    assert run("list", "--format", "csv").startswith("name,ttl,acquired_at,")


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_watch_draws_over_its_table_until_ctrl_c(
    use_redis: UseRedis,
    own_redis_server: RedisServer,
    process_env: Callable[[], dict[str, str]],
) -> None:
    use_redis(own_redis_server.url)
    here, there = pty.openpty()
    env = process_env() | {"COLUMNS": "120", "LINES": "40", "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-m", "django", "locks", "list", "--watch", "0.2"],
        env=env, stdin=there, stdout=there, stderr=there,
    )  # fmt: skip
    os.close(there)
    drawn = ""

    def until_drawn(*words: str) -> None:
        """From now on."""
        nonlocal drawn
        drawn = ""
        while not all(word in drawn for word in words):
            assert select.select([here], [], [], PATIENCE)[0], drawn
            drawn += os.read(here, 65536).decode(errors="replace")

    try:
        until_drawn("No locks")
        acquire("video:1")
        # The cursor goes up over a headline, a rule and a row at least
        until_drawn("video:1", 2 * ("\x1b[1A\x1b[2K"))
        # A store that is down is said, and asked again
        own_redis_server.kill()
        until_drawn("unavailable")
        until_drawn("unavailable")
        process.send_signal(signal.SIGINT)
        until(lambda: process.poll() is not None)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        os.close(here)


# ------------------------------------------------------------------------------ clear


def test_clear_by_task(some: None) -> None:
    out = run("clear", "--task", "videos.*", "--dry-run")
    assert out.count("would clear") == 2
    assert len(names()) == 3
    run("clear", "--task", "videos.*", "--noinput")
    assert names() == ["a"]


@pytest.mark.django_db(transaction=True)
def test_clear_of_those_whose_owner_is_gone(on_redis: None) -> None:
    acquire("alive")
    cache.add("lock:foreign", 1)
    orphan("orphan")
    assert run("clear", "--owner-gone", "--noinput").startswith("cleared orphan")
    assert names("--scan") == ["foreign", "alive"] or names("--scan") == ["alive", "foreign"]
    # Two locks are there, and nobody is known to be dead
    for ask in (["--dry-run"], ["--noinput"]):
        said = run("clear", "--owner-gone", *ask)
        assert said == "No lock's owner is known to be gone.\n"
    assert json.loads(run("clear", "--owner-gone", "--noinput", "--format", "json")) == []


def test_a_limit_may_be_larger_than_any_number_of_locks(some: None) -> None:
    for limit in (2**63 - 1, 2**63, 10**20):
        for how in ([], ["--scan"], ["--sort", "name"]):
            assert sorted(names("--limit", str(limit), *how)) == ["a", "b", "c"]


# ------------------------------------------------------------------------------ show


@pytest.mark.django_db
def test_show_says_the_guarded_row(on_redis: None, make_task: MakeTask) -> None:
    job = Job.objects.create()
    held_by(make_task("job:{job_id}"), f"job:{job.pk}")
    assert f"row:      app.Job {job.pk}\n" in run("show", f"job:{job.pk}")
    shown = json.loads(run("show", f"job:{job.pk}", "--format", "json"))
    assert shown["row"] == f"app.Job {job.pk}"


def test_show_of_a_process_that_cannot_be_judged(on_redis: None) -> None:
    here = owner_record("videos.transcode", "0a1b")
    elsewhere = here | {"host": "worker-2", "boot": "another boot"}
    without_proc = here | {"boot": None, "pidns": None, "start": None}
    for name, owner in (("elsewhere", elsewhere), ("mac", without_proc)):
        assert isinstance(stores["default"].acquire(name, new_token(), 60, owner), Grant)
    assert "process:  unknown (another host or container)\n" in run("show", "elsewhere")
    assert "process:  unknown\n" in run("show", "mac")
    assert json.loads(run("show", "mac", "--format", "json"))["alive"] is None


@pytest.mark.django_db
def test_show_without_a_row_where_it_cannot_be_found_out(
    on_redis: None,
    make_task: MakeTask,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def load() -> None:
        raise ModuleNotFoundError("No module named 'torch'")

    job = Job.objects.create()
    held_by(make_task("job:{job_id}"), f"job:{job.pk}")
    monkeypatch.setattr(work, "loaders", [load])
    assert "row:" not in run("show", f"job:{job.pk}")
    assert json.loads(run("show", f"job:{job.pk}", "--format", "json"))["row"] is None
    assert f"the row of the lock job:{job.pk} cannot be found out" in caplog.messages


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(verb, "--help")
    assert ended.value.code == 0
    assert f"manage.py locks {verb} " in capsys.readouterr().out.partition("examples:")[2]


def test_help_says_which_stores(capsys: pytest.CaptureFixture[str]) -> None:
    for verb, stores_meant in (("doctor", "all stores"), ("list", "default")):
        with pytest.raises(SystemExit):
            run(verb, "--help")
        words = " ".join(capsys.readouterr().out.split())
        assert f"alias in the setting TASKLOCK (default: {stores_meant})" in words
