"""Who waits for a lock: asked of the store, shown by the command and on the admin's page."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import time
from collections.abc import Iterator
from datetime import datetime

import pytest
import redis
from django.core.cache import cache
from django.core.management import call_command
from django.test import Client

from django_tasklock import locks
from django_tasklock._values.describe import age
from django_tasklock._values.owner import Owner
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Refusal
from django_tasklock.stores.database import DatabaseStore
from tests.admin.conftest import (
    client_with,
    id_of,
    operator,
    page_of,
    url_of,
    words_of,
)
from tests.agent import Agent
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, Traffic, holder, taken, waiting
from tests.store_cases import own_prefix
from tests.waiting import until

__all__ = ["client_with", "operator"]

DURATION = re.compile(r"[\d.]+s|\d+m\d\ds")


@pytest.fixture
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


@pytest.fixture
def agents(on_redis: None) -> Iterator[list[Agent]]:
    """Two processes that wait for video:1, which this one holds, in their order."""
    lease = taken("video:1")
    with Agent() as first, Agent() as second:
        for position, agent in enumerate((first, second), 1):
            agent.tell("acquire", name="video:1", ttl=LONG, wait=None)
            until(lambda position=position: waiting("video:1") == position)  # type: ignore[misc]
        yield [first, second]
    locks.clear("video:1")
    lease.release()


def moments() -> list[datetime]:
    """Since when those wait that wait for video:1."""
    found = [owner.waiting_since for owner in locks.waiters("video:1")]
    return [moment for moment in found if moment is not None]


def wait_as(task: str, task_id: str, position: int) -> Meanwhile[object]:
    """A thread of a task that waits for video:1, and ends when it has its turn."""

    def wait() -> bool:
        won = locks.try_acquire("video:1", ttl=LONG, wait=None, task=task, task_id=task_id)
        return locks.clear("video:1", won.token)

    thread = Meanwhile[object](wait)
    until(lambda: waiting("video:1") == position, f"waiter {position}")
    return thread


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("locks", *arguments, stdout=out)
    return out.getvalue()


# ------------------------------------------------------------------------------ the service


def test_waiters_are_returned_in_the_order_of_the_queue(agents: list[Agent]) -> None:
    found = locks.waiters("video:1")
    assert [owner.pid for owner in found] == [agent.pid for agent in agents]
    assert all(owner.alive() is True for owner in found)
    here = Owner.current()
    assert {(owner.host, owner.boot) for owner in found} == {(here.host, here.boot)}


def test_a_waiter_that_was_handed_the_lock_waits_no_longer(agents: list[Agent]) -> None:
    locks.clear("video:1")
    until(lambda: holder("video:1").owner.pid == agents[0].pid)
    assert [owner.pid for owner in locks.waiters("video:1")] == [agents[1].pid]


def test_waiter_that_died_is_told_as_gone(agents: list[Agent]) -> None:
    agents[0].kill()
    assert [owner.alive() for owner in locks.waiters("video:1")] == [False, True]


def test_threads_and_their_tasks_are_told(on_redis: None) -> None:
    lease = taken("video:1")
    threads = [wait_as(f"videos.{number}", f"id:{number}", number) for number in (1, 2, 3)]
    found = locks.waiters("video:1")
    expected = [("videos.1", "id:1"), ("videos.2", "id:2"), ("videos.3", "id:3")]
    assert [(owner.task, owner.task_id) for owner in found] == expected
    assert [owner.thread for owner in found] == [thread.name for thread in threads]
    assert {owner.pid for owner in found} == {os.getpid()}
    assert stores["default"].waiters("video:1", 2) == found[:2]
    assert stores["default"].waiters("video:1", 0) == []
    lease.release()
    for thread in threads:
        assert thread.result() is True


def test_a_lock_that_is_free_or_only_held_has_no_waiters(on_redis: None) -> None:
    assert locks.waiters("video:1") == []
    taken("video:1")
    assert locks.waiters("video:1") == []


def test_name_is_checked(on_redis: None) -> None:
    with pytest.raises(ValueError, match="a lock's name"):
        locks.waiters("a b")


def test_entries_of_an_earlier_version_are_shown_without_a_moment(
    use_redis: UseRedis, own_redis_server: RedisServer
) -> None:
    use_redis(own_redis_server.url)
    lease = taken("video:1")
    token = new_token()
    record = pickle.dumps({**owner_record("videos.1", "id:1"), "token": token})
    queue = stores["default"].key("video:1") + " queue"  # type: ignore[attr-defined]
    with redis.Redis.from_url(own_redis_server.url) as server:
        server.zadd(queue, {token.encode() + new_token().encode() + b"1:60000:" + record: 1})
    (owner,) = locks.waiters("video:1")
    assert (owner.task, owner.waiting_since) == ("videos.1", None)
    info = holder("video:1")
    assert (info.waiters, info.waiting_since, info.longest_wait) == (1, None, None)
    assert json.loads(run("list", "--format", "json"))[0]["longest_wait"] is None
    shown = json.loads(run("show", "video:1", "--format", "json"))
    assert (shown["longest_wait"], shown["waiting"][0]["waiting_since"]) == (None, None)
    assert "videos.1[id:1]" in run("show", "video:1")
    lease.release()


def test_a_moment_that_no_clock_shows_makes_the_entry_a_strangers(
    use_redis: UseRedis, own_redis_server: RedisServer
) -> None:
    use_redis(own_redis_server.url)
    lease = taken("video:1")
    queue = stores["default"].key("video:1") + " queue"  # type: ignore[attr-defined]
    with redis.Redis.from_url(own_redis_server.url) as server:
        for number, since in enumerate((float("nan"), -1.0, 1e18, "now", True)):
            record = {**owner_record("videos.1"), "token": new_token(), "since": since}
            member = b"x" * 44 + b"%d:60000:" % number + pickle.dumps(record)
            server.zadd(queue, {member: number})
    assert [owner.task for owner in locks.waiters("video:1")] == [None] * 5
    assert holder("video:1").longest_wait is None
    lease.release()


def test_a_moment_of_a_clock_that_is_ahead_is_no_negative_wait(
    use_redis: UseRedis, own_redis_server: RedisServer
) -> None:
    use_redis(own_redis_server.url)
    lease = taken("video:1")
    queue = stores["default"].key("video:1") + " queue"  # type: ignore[attr-defined]
    record = {**owner_record(), "token": new_token(), "at": time.time() + 3600}
    with redis.Redis.from_url(own_redis_server.url) as server:
        server.zadd(queue, {b"x" * 44 + b"1:60000:" + pickle.dumps(record): 1})
    assert holder("video:1").longest_wait == 0.0
    lease.release()


def test_the_first_who_waits_for_a_permit_waits_since_it_first_asked(on_redis: None) -> None:
    held = [taken("export", slots=2) for _ in range(2)]

    def use() -> bool:
        won = locks.acquire("export", ttl=LONG, wait=None, slots=2)
        return won is not None and won.release()

    first = Meanwhile(use)
    until(lambda: len(locks.waiters("export")) == 1)
    second = Meanwhile(use)
    until(lambda: len(locks.waiters("export")) == 2)
    # It joins the queue of each permit some time after it began to wait at the gate.
    until(lambda: all(holder(f"export#{slot}").waiters == 1 for slot in (1, 2)))
    one, two = (owner.waiting_since for owner in locks.waiters("export"))
    assert one is not None
    assert two is not None
    assert one <= two
    assert [holder(f"export#{slot}").waiting_since for slot in (1, 2)] == [one, one]
    for lease in held:
        lease.release()
    assert first.result()
    assert second.result()
    lease = taken("export", slots=2)
    assert holder(lease.name).owner.waiting_since is None
    lease.release()


def test_they_are_asked_for_by_one_command_and_the_gate_of_permits_by_another(
    use_redis: UseRedis, own_redis_server: RedisServer
) -> None:
    use_redis(own_redis_server.url)
    lease = taken("video:1")
    thread = wait_as("videos.1", "1", 1)
    assert len(locks.waiters("video:1")) == 1  # The server knows the script from now on.
    traffic = Traffic(own_redis_server)
    assert len(locks.waiters("video:1")) == 1
    assert traffic.commands() == {"evalsha": 2, "zrange": 1, "get": 1}
    lease.release()
    thread.result()


def test_a_store_that_polls_knows_no_waiters(use_caches: UseCaches) -> None:
    backend = "django.core.cache.backends.locmem.LocMemCache"
    use_caches({"default": {"BACKEND": backend, "LOCATION": own_prefix()}})
    taken("video:1")
    assert locks.waiters("video:1") == []


# ------------------------------------------------------------------------------ the command


def test_show_lists_the_waiters(agents: list[Agent]) -> None:
    agents[1].kill()
    sheet, table = run("show", "video:1").split("\n\n")
    assert re.search(r"^waiters: +2$", sheet, re.M)
    _title, header, *rows = table.splitlines()
    assert re.split(" {2,}", header) == ["POSITION", "WAITS", "WHO", "STATE"]
    host = Owner.current().host
    for row, number, state in zip(rows, (0, 1), ("alive", "gone"), strict=True):
        position, waits, who, shown = row.split()
        assert (position, who, shown) == (str(number + 1), f"{host}:{agents[number].pid}", state)
        assert DURATION.fullmatch(waits)


@pytest.mark.nightly
def test_show_says_since_when_those_wait_that_the_list_does_not_count(
    database_store: DatabaseStore,
) -> None:
    lease = taken("video:1")
    waiter = database_store.waiter("video:1", new_token(), LONG, owner_record("videos.1", "id:1"))
    assert isinstance(waiter.ask(), Refusal)
    (since,) = moments()
    sheet, table = run("show", "video:1").split("\n\n")
    assert "waiters:" not in sheet
    assert "videos.1[id:1]" in table
    (shown,) = json.loads(run("show", "video:1", "--format", "json"))["waiting"]
    assert shown["waiting_since"] == since.isoformat()
    assert waiter.leave() is None
    assert lease.release()


@pytest.mark.nightly
def test_show_as_json_lists_the_waiters(agents: list[Agent]) -> None:
    shown = json.loads(run("show", "video:1", "--format", "json"))
    assert shown["waiters"] == 2
    assert shown["waiting"] == [owner.as_dict() for owner in locks.waiters("video:1")]
    assert [owner["pid"] for owner in shown["waiting"]] == [agent.pid for agent in agents]
    since = [datetime.fromisoformat(owner["waiting_since"]) for owner in shown["waiting"]]
    assert since == moments()
    assert shown["longest_wait"] <= age(since[0])


@pytest.mark.nightly
def test_list_has_the_longest_wait_of_each_lock(agents: list[Agent]) -> None:
    taken("video:2")
    (since, _), before = moments(), age(moments()[0])
    rows = {row["name"]: row for row in json.loads(run("list", "--format", "json"))}
    assert before <= rows["video:1"]["longest_wait"] <= age(since)
    assert rows["video:2"]["longest_wait"] is None
    assert ",longest_wait," in run("list", "--format", "csv")


# ------------------------------------------------------------------------------ the admin


def rows_of(page: str) -> list[list[str]]:
    """The cells of the table of who waits."""
    (section,) = re.findall(r'<section class="tasklock-waiting".*?</section>', page, re.S)
    rows = re.findall(r"<tr>(.*?)</tr>", section, re.S)[1:]
    cells = (re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in rows)
    return [[re.sub("<[^>]+>", "", cell).strip() for cell in row] for row in cells]


@pytest.mark.django_db
def test_detail_lists_the_waiters(agents: list[Agent], operator: Client) -> None:
    agents[0].kill()
    response = operator.get(url_of("change", id_of(holder("video:1"))))
    host = Owner.current().host
    words = words_of(response).partition(" waits ")[2]
    first, second = (re.escape(f"{host}:{agent.pid}") for agent in agents[:2])
    assert re.search(rf"1 {first} .*gone.* \S+s 2 {second} ", words), words


@pytest.mark.django_db
def test_detail_escapes_what_waiters_are_called(on_redis: None, operator: Client) -> None:
    lease = taken("video:1")
    thread = wait_as("<b>videos</b>", "\x1b[2J", 1)
    page = page_of(operator.get(url_of("change", id_of(lease))))
    assert "&lt;b&gt;videos&lt;/b&gt;" in page
    assert "\\x1b[2J" in page
    assert "<b>videos" not in page
    lease.release()
    thread.result()


@pytest.mark.django_db
def test_detail_has_no_empty_table(on_redis: None, operator: Client) -> None:
    cache.add("lock:foreign", "locked", 60)
    for info in (taken("video:1"), holder("foreign")):
        assert "Wait queue" not in words_of(operator.get(url_of("change", id_of(info))))
