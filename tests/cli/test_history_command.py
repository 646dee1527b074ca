"""``manage.py locks history``."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from django_tasklock import Event
from django_tasklock.stores import stores
from tests.command import run, run_json
from tests.conftest import UseCaches, UseRedis
from tests.inside import Owner
from tests.lines import whole_lines
from tests.servers import RedisServer
from tests.steps import taken
from tests.waiting import PATIENCE, until

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("on_redis")]

KEPT = {"OPTIONS": {"HISTORY": 1000}}
Follow = Callable[..., "Followed"]
OWNER = Owner(host="web-1", pid=7, task="videos.process", task_id="id-1")


def happened(
    kind: Any = "refused", name: str = "video:1", owner: Owner = OWNER, **fields: Any
) -> None:
    now = datetime.now(timezone.utc)
    stores["default"].record([Event(kind, name, "default", now, owner, **fields)])


def rows(said: str) -> list[list[str]]:
    return [re.split(r"  +", line.strip()) for line in said.splitlines()]


def test_the_newest_come_first() -> None:
    happened(holder=Owner(host="web-2", pid=8), seconds=61.5)
    happened("cleared", "video:2", by="alice")
    happened("lost", reason="its ttl ran out")
    happened("held", "video:3", by="bob", seconds=7200.0, reason="migration")
    headers, *found = rows(run("history"))
    assert headers == ["AGE", "WHAT", "NAME", "TASK", "WHO", "BY", "SECONDS", "REASON"]
    task = "videos.process[id-1]"
    assert [row[1:] for row in found] == [
        ["held", "video:3", task, "web-1:7", "bob", "2h00m", "migration"],
        ["lost", "video:1", task, "web-1:7", "-", "-", "its ttl ran out"],
        ["cleared", "video:2", task, "web-1:7", "alice", "-", "-"],
        ["refused", "video:1", task, "web-1:7", "web-2:8", "1m01s", "-"],
    ]
    assert [row[1] for row in rows(run("history", "video:1"))[1:]] == ["lost", "refused"]
    assert [row[1] for row in rows(run("history", "--limit", "1"))[1:]] == ["held"]


def test_why_a_task_was_skipped() -> None:
    other = Owner(host="web-2", pid=8, task="videos.process", task_id="id-2")
    alice = Owner(held_by="alice", reason="a migration")
    happened("skipped", holder=alice, reason="held_by_operator")
    happened("skipped", holder=other, reason="already_processing")
    happened("skipped", holder=Owner(task="videos.process", task_id="id-3"), reason="debounced")
    happened("lost", owner=other, reason="late")
    found = rows(run("history", "--task-id", "id-1"))[1:]
    assert [[row[1], row[3], row[5], row[6]] for row in found] == [
        ["skipped", "videos.process[id-1]", "videos.process[id-3]", "debounced"],
        ["skipped", "videos.process[id-1]", "web-2:8 videos.process[id-2]", "already_processing"],
        ["skipped", "videos.process[id-1]", "operator alice", "held_by_operator: a migration"],
    ]
    (row,) = run_json("history", "--task-id", "id-2")
    assert row["kind"] == "lost"


def test_as_json() -> None:
    taken("video:1").release()
    assert run("history") == "No events.\n"
    assert run_json("history") == []
    happened(seconds=0.5, holder=Owner(held_by="alice", reason=""))
    (row,) = run_json("history")
    assert (row["kind"], row["name"], row["store"]) == ("refused", "video:1", "default")
    assert (row["owner"]["pid"], row["holder"]["held_by"], row["seconds"]) == (7, "alice", 0.5)
    assert datetime.fromisoformat(row["at"]) - datetime.now(timezone.utc) < timedelta(minutes=1)


def test_what_a_stranger_wrote_moves_no_cursor(use_caches: UseCaches) -> None:
    """A store that checks nothing."""
    use_caches({}, {"default": {"BACKEND": "django_tasklock.stores.memory.MemoryStore"}})
    happened(name="a\x1b[2J", by="\x1b[1A", reason="x\ny")
    said = run("history")
    assert "\x1b" not in said
    assert "a\\x1b[2J" in said
    assert len(said.splitlines()) == 2


class Followed:
    """``locks history --follow`` in a process, and the lines that it has written."""

    def __init__(self, env: dict[str, str], folder: Path, *arguments: str) -> None:
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "django", "locks", "history", "--follow", *arguments],
                env=env, stdout=out, stderr=err,
            )  # fmt: skip

    def lines(self) -> list[str]:
        return [line.decode() for line in whole_lines(self._out)]

    def errors(self) -> list[str]:
        return [line.decode() for line in whole_lines(self._err)]

    def interrupt(self) -> int:
        """Ctrl-C; the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE)


@pytest.fixture
def follow(process_env: Callable[[], dict[str, str]], tmp_path: Path) -> Iterator[Follow]:
    """``follow(*arguments)``, once in a test."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: str) -> Followed:
            followed = Followed(process_env(), tmp_path, *arguments)
            stack.callback(followed.process.wait)
            stack.callback(followed.process.kill)
            return followed

        yield start


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_following_shows_what_comes(use_redis: UseRedis, follow: Follow) -> None:
    use_redis(tasklock=KEPT)
    for reason in ("before the first one", "first", "second"):
        happened("lost", reason=reason)
    followed = follow("--limit", "2")
    until(lambda: len(followed.lines()) == 2)
    happened(name="video:2", seconds=1.5)
    happened(name="video:2", seconds=1.5)
    until(lambda: len(followed.lines()) == 4)
    assert followed.interrupt() == 128 + signal.SIGINT
    assert followed.errors() == []
    assert [row[-1] for row in rows("\n".join(followed.lines()[:2]))] == ["first", "second"]
    for line in followed.lines()[2:]:
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  refused +video:2 ", line)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_following_outlives_an_outage(
    use_redis: UseRedis, own_redis_server: RedisServer, follow: Follow
) -> None:
    use_redis(own_redis_server.url, KEPT, SOCKET_TIMEOUT=2)
    happened()
    followed = follow("--format", "json")
    until(followed.lines)
    own_redis_server.pause()
    until(followed.errors)
    own_redis_server.resume()
    happened("cleared", by="alice")
    until(lambda: len(followed.lines()) == 2)
    assert followed.interrupt() == 128 + signal.SIGINT
    assert [json.loads(line)["kind"] for line in followed.lines()] == ["refused", "cleared"]
    (error,) = followed.errors()
    assert "unavailable" in error
