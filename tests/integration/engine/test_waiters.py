"""Who waits for a lock: asked of the store, shown by the command and on the admin's page."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator

import pytest
from django.core.cache import cache
from django.core.management import call_command
from django.test import Client

from django_tasklock import locks
from django_tasklock._values.owner import Owner
from django_tasklock.stores import stores
from tests.agent import Agent
from tests.conftest import UseCaches, UseRedis
from tests.integration.admin.test_admin import change_url, client_with, operator, page_of, words_of
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, Traffic, holder, taken, waiting
from tests.store_cases import own_prefix
from tests.waiting import until

__all__ = ["client_with", "operator"]


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
    header, *rows = table.splitlines()
    assert re.split(" {2,}", header) == ["POSITION", "HOST", "PID", "PROCESS", "TASK", "TASK ID"]
    host = Owner.current().host
    assert [row.split() for row in rows] == [
        ["1", host, str(agents[0].pid), "alive", "-", "-"],
        ["2", host, str(agents[1].pid), "gone", "-", "-"],
    ]


def test_show_as_json_lists_the_waiters(agents: list[Agent]) -> None:
    shown = json.loads(run("show", "video:1", "--format", "json"))
    assert shown["waiters"] == 2
    assert shown["waiting"] == [owner.as_dict() for owner in locks.waiters("video:1")]
    assert [owner["pid"] for owner in shown["waiting"]] == [agent.pid for agent in agents]


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
    response = operator.get(change_url(holder("video:1")))
    host = Owner.current().host
    assert rows_of(page_of(response)) == [
        ["1", host, str(agents[0].pid), "gone", "-", "-"],
        ["2", host, str(agents[1].pid), "alive", "-", "-"],
    ]
    assert f"2 {host} {agents[1].pid} alive - -" in words_of(response).partition(" position ")[2]


@pytest.mark.django_db
def test_detail_escapes_what_waiters_are_called(on_redis: None, operator: Client) -> None:
    lease = taken("video:1")
    thread = wait_as("<b>videos</b>", "\x1b[2J", 1)
    page = page_of(operator.get(change_url(lease)))
    assert rows_of(page)[0][-2:] == ["&lt;b&gt;videos&lt;/b&gt;", "\\x1b[2J"]
    assert "<b>videos" not in page
    lease.release()
    thread.result()


@pytest.mark.django_db
def test_detail_has_no_empty_table(on_redis: None, operator: Client) -> None:
    cache.add("lock:foreign", "locked", 60)
    for info in (taken("video:1"), holder("foreign")):
        assert "Wait queue" not in words_of(operator.get(change_url(info)))
