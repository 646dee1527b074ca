"""Who waits for a lock: asked of the store, shown by the command and on the admin's page."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import time
from datetime import datetime
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.test import Client

from django_tasklock import locks
from django_tasklock.stores import stores
from tests.admin.conftest import client_with, id_of, operator, page_of, url_of, words_of
from tests.agent import Agent
from tests.conftest import UseRedis
from tests.inside import Owner, owner_record
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, holder, taken, waiting
from tests.waiting import until

__all__ = ["client_with", "operator"]


def wait_as(task: str, task_id: str, position: int) -> Meanwhile[bool]:
    """A thread of a task that waits for video:1, and ends when it has its turn."""

    def wait() -> bool:
        won = locks.try_acquire("video:1", ttl=LONG, wait=None, task=task, task_id=task_id)
        return locks.clear("video:1", won.token)

    thread = Meanwhile(wait)
    until(lambda: waiting("video:1") == position, f"waiter {position}")
    return thread


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("locks", *arguments, stdout=out)
    return out.getvalue()


@pytest.mark.django_db
def test_processes_that_wait_are_told_by_the_service_the_command_and_the_page(
    on_redis: None, operator: Client
) -> None:
    # Given two processes that wait, of which the first dies
    lease = taken("video:1")
    assert locks.waiters("video:1") == []
    with Agent() as first, Agent() as second:
        for position, agent in enumerate((first, second), 1):
            agent.tell("acquire", name="video:1", ttl=LONG, wait=None)
            until(lambda position=position: waiting("video:1") == position)  # type: ignore[misc]
        first.kill()

        # I expect the service to name them in the order of the queue
        found = locks.waiters("video:1")
        assert [owner.pid for owner in found] == [first.pid, second.pid]
        assert [owner.alive() for owner in found] == [False, True]

        # And so the command
        sheet, table = run("show", "video:1").split("\n\n")
        assert re.search(r"^waiters: +2$", sheet, re.M)
        _title, header, *rows = table.splitlines()
        assert re.split(" {2,}", header) == ["POSITION", "WAITS", "WHO", "STATE"]
        assert [row.split()[3] for row in rows] == ["gone", "alive"]
        shown = json.loads(run("show", "video:1", "--format", "json"))
        assert shown["waiting"] == [owner.as_dict() for owner in found]
        (row,) = json.loads(run("list", "--format", "json"))
        since = datetime.fromisoformat(shown["waiting"][0]["waiting_since"])
        assert 0 <= row["longest_wait"] <= time.time() - since.timestamp()

        # And the page
        words = words_of(operator.get(url_of("change", id_of(holder("video:1")))))
        one, two = (re.escape(f"{Owner.current().host}:{agent.pid}") for agent in (first, second))
        waits = words.partition(" waits ")[2]
        assert re.search(rf"1 {one} .*gone.* \S+s 2 {two} ", waits), words

        # And none that was handed the lock
        lease.release()
        assert second.answer()["token"] == holder("video:1").token
        assert locks.waiters("video:1") == []


@pytest.mark.django_db
def test_tasks_that_wait_are_told_and_the_page_escapes_them(
    on_redis: None, operator: Client
) -> None:
    lease = taken("video:1")
    tasks = [("<b>videos</b>", "id:1"), ("\x1b[2J", "id:2"), ("videos.3", "id:3")]
    threads = [wait_as(*task, position) for position, task in enumerate(tasks, 1)]
    found = locks.waiters("video:1")
    assert [owner.task_id for owner in found] == ["id:1", "id:2", "id:3"]
    assert [owner.task for owner in found] == ["<b>videos</b>", "\\x1b[2J", "videos.3"]
    for owner, thread in zip(found, threads, strict=True):
        assert owner.thread is not None
        assert owner.thread.startswith(thread.name)
    assert {owner.pid for owner in found} == {os.getpid()}
    assert stores["default"].waiters("video:1", 2) == found[:2]
    assert stores["default"].waiters("video:1", 0) == []
    page = page_of(operator.get(url_of("change", id_of(lease))))
    assert "&lt;b&gt;videos&lt;/b&gt;" in page
    assert "\\x1b[2J" in page
    assert "<b>videos" not in page
    lease.release()
    assert [thread.result() for thread in threads] == [True] * 3


@pytest.mark.parametrize("since", [None, float("nan"), -1.0, 1e18, "now", True])
def test_a_moment_that_no_clock_shows_is_none(
    use_redis: UseRedis, own_redis_server: RedisServer, since: object
) -> None:
    """Such as that of an earlier version, which recorded none."""
    use_redis(own_redis_server.url)
    lease = taken("video:1")
    queue: Any = stores["default"].key("video:1") + " queue"  # type: ignore[attr-defined]
    record = {**owner_record("videos.1"), "token": "x" * 22, "since": since}
    with redis.Redis.from_url(own_redis_server.url) as server:
        server.zadd(queue, {b"x" * 44 + b"1:60000:" + pickle.dumps(record): 1})
    assert [owner.waiting_since for owner in locks.waiters("video:1")] == [None]
    assert holder("video:1").longest_wait is None
    assert json.loads(run("list", "--format", "json"))[0]["longest_wait"] is None
    assert json.loads(run("show", "video:1", "--format", "json"))["longest_wait"] is None
    lease.release()
