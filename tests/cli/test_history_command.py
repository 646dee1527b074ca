"""``manage.py locks history``."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

import pytest
from django.core.management import CommandError

from django_tasklock import Event
from django_tasklock._values.owner import Owner
from django_tasklock.cli.lock_history import COLUMNS
from django_tasklock.stores import stores
from tests.cli.test_command import on_redis, run
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.steps import taken
from tests.waiting import PATIENCE, until

__all__ = ["on_redis"]
pytestmark = pytest.mark.django_db

KEPT = {"OPTIONS": {"HISTORY": 1000}}
OWNER = Owner(host="web-1", pid=7, task="videos.process", task_id="id-1")


def happened(kind: str = "refused", name: str = "video:1", **fields: object) -> None:
    now = datetime.now(timezone.utc)
    stores["default"].record(
        [Event(kind, name, "default", now, OWNER, **fields)]  # type: ignore[arg-type]
    )


def rows(said: str) -> list[list[str]]:
    return [re.split(r"  +", line.strip()) for line in said.splitlines()]


def test_the_newest_come_first(on_redis: None) -> None:
    happened(holder=Owner(host="web-2", pid=8), seconds=61.5)
    happened("cleared", "video:2", by="alice")
    happened("lost", reason="its ttl ran out")
    happened("held", "video:3", by="bob", seconds=7200.0, reason="migration")
    headers, *found = rows(run("history"))
    assert headers == list(COLUMNS)
    task = "videos.process[id-1]"
    assert [row[1:] for row in found] == [
        ["held", "video:3", task, "web-1:7", "bob", "2h00m", "migration"],
        ["lost", "video:1", task, "web-1:7", "-", "-", "its ttl ran out"],
        ["cleared", "video:2", task, "web-1:7", "alice", "-", "-"],
        ["refused", "video:1", task, "web-1:7", "web-2:8", "1m01s", "-"],
    ]
    assert [row[1] for row in rows(run("history", "video:1"))[1:]] == ["lost", "refused"]
    assert [row[1] for row in rows(run("history", "--limit", "1"))[1:]] == ["held"]


def test_why_a_task_was_skipped(on_redis: None) -> None:
    other = Owner(host="web-2", pid=8, task="videos.process", task_id="id-2")
    alice = Owner(held_by="alice", reason="a migration")
    happened("skipped", holder=alice, reason="held_by_operator")
    happened("skipped", holder=other, reason="already_processing")
    happened("skipped", holder=Owner(task="videos.process", task_id="id-3"), reason="debounced")
    stores["default"].record(
        [Event("lost", "video:1", "default", datetime.now(timezone.utc), other, reason="late")]
    )
    found = rows(run("history", "--task-id", "id-1"))[1:]
    assert [[row[1], row[3], row[5], row[6]] for row in found] == [
        ["skipped", "videos.process[id-1]", "videos.process[id-3]", "debounced"],
        ["skipped", "videos.process[id-1]", "web-2:8 videos.process[id-2]", "already_processing"],
        ["skipped", "videos.process[id-1]", "operator alice", "held_by_operator: a migration"],
    ]
    assert [row["kind"] for row in json.loads(run(
        "history", "--task-id", "id-2", "--format", "json"
    ))] == ["lost"]  # fmt: skip


def test_nothing_has_happened(on_redis: None) -> None:
    taken("video:1").release()
    assert run("history") == "No events.\n"
    assert json.loads(run("history", "--format", "json")) == []


def test_as_json(on_redis: None) -> None:
    happened(seconds=0.5, holder=Owner(held_by="alice", reason=""))
    (row,) = json.loads(run("history", "--format", "json"))
    assert (row["kind"], row["name"], row["store"]) == ("refused", "video:1", "default")
    assert (row["owner"]["pid"], row["holder"]["held_by"], row["seconds"]) == (7, "alice", 0.5)
    assert datetime.fromisoformat(row["at"]) - datetime.now(timezone.utc) < timedelta(minutes=1)


@pytest.mark.parametrize("follow", [(), ("--follow",)])
def test_a_store_without_a_history(on_locmem: None, follow: tuple[str, ...]) -> None:
    with pytest.raises(CommandError, match="cannot keep a history of its locks"):
        run("history", *follow)


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

    def __init__(self, env: dict[str, str], *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "django", "locks", "history", "--follow", *arguments],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self.errors: list[str] = []
        pipes = ((self.process.stdout, self.lines), (self.process.stderr, self.errors))
        self._readers: list[threading.Thread] = []
        for pipe, to in pipes:
            reader = threading.Thread(target=self._read, args=(pipe, to), daemon=True)
            reader.start()
            self._readers.append(reader)

    def _read(self, pipe: Iterator[str], to: list[str]) -> None:
        to.extend(line.rstrip("\n") for line in pipe)

    def interrupt(self) -> int:
        """Ctrl-C; the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@contextmanager
def following(environment: Callable[[], dict[str, str]], *arguments: str) -> Iterator[Followed]:
    followed = Followed(environment(), *arguments)
    try:
        yield followed
    finally:
        followed.close()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_following_shows_what_comes(
    use_redis: UseRedis, process_env: Callable[[], dict[str, str]]
) -> None:
    use_redis(tasklock=KEPT)
    for reason in ("before the first one", "first", "second"):
        happened("lost", reason=reason)
    with following(process_env, "--limit", "2") as followed:
        until(lambda: len(followed.lines) == 2)
        happened(name="video:2", seconds=1.5)
        happened(name="video:2", seconds=1.5)
        until(lambda: len(followed.lines) == 4)
        assert followed.interrupt() == 128 + signal.SIGINT
        assert followed.errors == []
    assert [row[-1] for row in rows("\n".join(followed.lines[:2]))] == ["first", "second"]
    for line in followed.lines[2:]:
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  refused +video:2 ", line)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_following_outlives_an_outage(
    use_redis: UseRedis, own_redis_server: RedisServer, process_env: Callable[[], dict[str, str]]
) -> None:
    use_redis(own_redis_server.url, KEPT, SOCKET_TIMEOUT=2)
    happened()
    with following(process_env, "--format", "json") as followed:
        until(lambda: len(followed.lines) == 1)
        own_redis_server.pause()
        until(lambda: followed.errors)
        own_redis_server.resume()
        happened("cleared", by="alice")
        until(lambda: len(followed.lines) == 2)
        assert followed.interrupt() == 128 + signal.SIGINT
    assert [json.loads(line)["kind"] for line in followed.lines] == ["refused", "cleared"]
    assert len(followed.errors) == 1
    assert "unavailable" in followed.errors[0]
