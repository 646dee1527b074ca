"""The admin: what happened to a lock, which locks were wanted, the strip, and links to tasks."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.test import Client
from django.test.utils import override_settings

from django_tasklock import Event, lock, locks
from django_tasklock._values.owner import Owner
from django_tasklock.admin.moments import in_full, moment_in
from django_tasklock.admin.sparkline import sparkline
from django_tasklock.stores import stores
from tests.admin.test_admin import (
    LIST,
    UserWith,
    acquire,
    client_with,
    on_redis,
    operator,
    page_of,
    words_of,
)
from tests.cli.test_command import run
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.steps import Meanwhile, silent, taken, waiting
from tests.store_cases import database_store, redis_cache
from tests.waiting import until

__all__ = ["client_with", "on_redis", "operator"]
pytestmark = pytest.mark.django_db
HOLDER = Owner(host="worker-1", pid=8, task="videos.process", task_id="id/1")
CALLER = Owner(host="web-1", pid=7)
MEMORY = "django_tasklock.stores.memory.MemoryStore"
LINK = "https://flower.example.com/task/{task_id}?x={y}"


def happened(name: str, *, times: int = 1, kind: str = "refused", **fields: Any) -> None:
    filled = {"at": datetime.now(timezone.utc), "owner": CALLER, "holder": HOLDER, "seconds": 61.0}
    locks.store.record([Event(kind, name, "default", **(filled | fields))] * times)  # type: ignore[arg-type]


def change(name: str, store: str = "default") -> str:
    return f"{LIST}{quote(f'{store}:{name}')}/change/"


def summary_of(page: str) -> str:
    (found,) = re.findall(
        r'id="tasklock-summary">(.*?)</div>\s*<p class="tasklock-as-of', page, re.S
    )
    return str(found)


# ------------------------------------------------------------------------------ one lock


def test_the_page_of_a_lock_has_its_last_20_events(on_redis: None, operator: Client) -> None:
    acquire("video:1")
    happened("video:1", times=25)
    happened("video:1", kind="cleared", owner=HOLDER, holder=None, by="alice", seconds=None)
    happened("video:2", kind="lost")
    page = page_of(operator.get(change("video:1")))
    (events,) = re.findall(r'<section class="tasklock-events.*?</section>', page, re.S)
    rows = re.findall(r"<tr>.*?</tr>", events, re.S)[1:]
    assert len(rows) == 20
    assert "cleared" in rows[0]
    assert "alice" in rows[0]
    assert all("refused" in row and "worker-1:8" in row for row in rows[1:])
    assert "manage.py locks history -- video:1" in events


def test_the_page_of_a_lock_says_why_a_task_was_skipped(on_redis: None, operator: Client) -> None:
    acquire("video:1")
    happened("video:1", kind="skipped", holder=HOLDER, reason="already_processing")
    alice = Owner(held_by="alice", reason="a migration")
    happened("video:1", kind="skipped", holder=alice, reason="held_by_operator")
    later = Owner(task="videos.process", task_id="id-9")
    happened("video:1", kind="skipped", holder=later, reason="debounced")
    words = words_of(operator.get(change("video:1")))
    for said in (
        f"worker-1:8 {HOLDER.task}[{HOLDER.task_id}]",
        "already_processing",
        "operator alice",
        "held_by_operator: a migration",
        "videos.process[id-9]",
    ):
        assert said in words, said


def test_what_happened_several_times_is_one_row_and_counts_as_often(
    on_redis: None, operator: Client
) -> None:
    acquire("video:1")
    happened("video:1", count=37, since=datetime.now(timezone.utc))
    assert "refused × 37" in words_of(operator.get(change("video:1")))
    assert "37 events" in summary_of(page_of(operator.get(LIST)))
    contention = page_of(operator.get(f"{LIST}contention/"))
    assert '<td class="tasklock-number">37</td>' in contention


def test_a_lock_that_is_gone_has_a_page_if_anything_is_known_of_it(
    on_redis: None, client_with: UserWith
) -> None:
    viewer = client_with("view_lock")
    happened("video:1", kind="lost", reason="its ttl ran out")
    response = viewer.get(change("video:1"))
    assert response.status_code == 200
    words = words_of(response)
    assert "“video:1” is not locked" in words
    assert "its ttl ran out" in words
    # and of another lock nothing is: the list says so
    response = viewer.get(change("video:2"), follow=True)
    assert response.redirect_chain[0][0].startswith(LIST)
    assert "“video:2” is not locked." in words_of(response)
    # It is for those who may see locks
    assert client_with("view_user").get(change("video:1")).status_code == 403
    # The pages to clear a lock that is gone, and of the admin's log, lead to the list as before
    clearer = client_with("view_lock", "delete_lock")
    for other in ("delete", "history"):
        assert clearer.get(change("video:1").replace("change", other)).status_code == 302


@pytest.mark.parametrize("history", [{}, {"HISTORY": 0}])
def test_a_name_of_which_permits_are_held_is_not_said_to_be_free(
    use_redis: UseRedis, client_with: UserWith, history: dict[str, Any]
) -> None:
    use_redis(tasklock={"OPTIONS": history})
    if not history:
        happened("export#1", owner=Owner(slots=2))
    leases = [taken("export", slots=2) for _ in range(2)]
    page = client_with("view_lock").get(change("export"))
    words = words_of(page)
    assert "Permits of “export”" in words
    assert "these permits of it were held:" in words
    assert "is not locked" not in words
    assert "Nobody held it" not in words
    for lease in leases:
        who = f"{lease.owner.host}:{lease.owner.pid}"
        assert f'<a href="{change(lease.name)}">{lease.name}</a> {who}' in page_of(page)


def test_without_a_history_a_lock_that_is_gone_leads_to_the_list(
    use_redis: UseRedis, operator: Client
) -> None:
    use_redis(tasklock={"OPTIONS": {"HISTORY": 0}})
    response = operator.get(change("video:1"))
    assert response.status_code == 302
    acquire("video:1")
    assert "The store “default” keeps no history." in words_of(operator.get(change("video:1")))


@pytest.mark.parametrize("name", ["a b", "", "x" * 300])
def test_what_no_lock_can_be_called_leads_to_the_list(
    on_redis: None, operator: Client, name: str
) -> None:
    assert operator.get(change(name)).status_code == 302
    assert operator.get(change("a", store="nowhere")).status_code == 302


# ------------------------------------------------------------------------------ contention


def test_contention_counts_what_was_wanted_in_all_stores(
    use_caches: UseCaches, redis_server: RedisServer, operator: Client
) -> None:
    use_caches(
        {"default": redis_cache(redis_server.url), "second": redis_cache(redis_server.url)},
        {"default": {}, "other": {"CACHE": "second"}, "mute": {"OPTIONS": {"HISTORY": 0}}},
    )
    happened("video:1", times=3)
    now = datetime.now(timezone.utc)
    waited = Event("waited", "video:2", "other", now, HOLDER, seconds=75.0)
    locks.using("other").store.record([waited] * 2)
    page = page_of(operator.get(f"{LIST}contention/"))
    table = page.partition('id="contention_list"')[2]
    first, second = re.findall(r"<tr>.*?</tr>", table, re.S)[1:]
    assert re.findall(r'tasklock-number">([^<]*)<', first) == ["3", "0", "1m01s", "0", "0"]
    assert re.findall(r'tasklock-number">([^<]*)<', second) == ["0", "2", "1m15s", "0", "0"]
    assert f'href="{change("video:1")}"' in first
    assert "worker-1:8" in first
    assert "The store “mute” keeps no history." in page
    assert page.count("The oldest event that was read") == 2


def test_contention_of_a_store_that_is_down_is_not_nobody(
    use_redis: UseRedis, own_redis_server: RedisServer, operator: Client
) -> None:
    use_redis(own_redis_server.url)
    own_redis_server.kill()
    words = words_of(operator.get(f"{LIST}contention/"))
    assert "The store “default” is unavailable" in words
    assert "Nobody was refused" not in words


# ------------------------------------------------------------------------------ the strip


def test_the_strip_counts_what_the_page_shows(on_redis: None, operator: Client) -> None:
    acquire("video:1")
    lease = locks.acquire("video:2", ttl=60, hold_at_least=60)
    assert lease
    lease.release()
    assert locks.hold("video:3", ttl=60, by="alice", reason="x")
    until(lambda: locks.store.events(), "the hold is in the history")
    happened("video:1", times=2)
    page = page_of(operator.get(LIST))
    strip = summary_of(page)
    numbers = dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", strip))
    assert numbers == {
        "locks": "3", "waiting": "0", "owner gone": "0", "cooling": "1", "held by operators": "1",
    }  # fmt: skip
    assert "3 events" in strip
    assert 'role="img" aria-label="Events by the minute: 3 in all, at most ' in strip
    assert f'href="{LIST}contention/"' in strip
    assert "this page’s rows" not in strip
    # The list that updates itself has the same
    (said,) = {operator.get(f"{LIST}live/").json()["summary"].strip()}
    assert "3 events" in said
    # With a search the states are those of what was found, and it is said
    searched = summary_of(page_of(operator.get(LIST, {"q": "video:3"})))
    assert "<dt>locks</dt><dd>3</dd>" in searched
    assert "<dt>cooling</dt><dd>0</dd>" in searched
    assert "this page’s rows" in searched


def test_of_a_store_that_is_down_the_strip_says_no_number(
    use_redis: UseRedis, own_redis_server: RedisServer, operator: Client
) -> None:
    use_redis(own_redis_server.url)
    own_redis_server.kill()
    page = page_of(operator.get(LIST))
    assert "<dt>locks</dt><dd>?</dd>" in page
    assert "tasklock-sparkline" not in page


def test_who_waits_for_a_permit_is_counted_once(on_redis: None, operator: Client) -> None:
    """The first of them is in the queue of each permit."""
    held = [taken("export", slots=3) for _ in range(3)]
    waiters = [Meanwhile(lambda: locks.acquire("export", wait=60, slots=3)) for _ in range(2)]
    until(lambda: len(locks.waiters("export")) == 2, "two waiters")
    until(
        lambda: sum(waiting(f"export#{number}") for number in (1, 2, 3)) == 3, "all are looked at"
    )
    assert "<dt>waiting</dt><dd>2</dd>" in summary_of(page_of(operator.get(LIST)))
    for lease in held:
        lease.release()
    assert all(waiter.result() for waiter in waiters)


@pytest.mark.django_db(transaction=True)
def test_where_waiters_are_not_counted_the_strip_says_no_number(
    use_caches: UseCaches, operator: Client
) -> None:
    # Given a store that does not count its waiters in a list, and a waiter
    use_caches({}, {"default": database_store("default")})
    lease = taken("video:1")
    waiter = Meanwhile(lambda: locks.acquire("video:1", wait=60))
    until(lambda: locks.waiters("video:1"), "a waiter")

    # I expect the strip not to say that nobody waits
    assert "<dt>waiting</dt><dd>?</dd>" in summary_of(page_of(operator.get(LIST)))
    lease.release()
    assert waiter.result()


def test_events_of_a_part_of_the_stores_are_not_called_all(
    use_caches: UseCaches, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given two stores with events
    use_caches({}, {"default": {"BACKEND": MEMORY}, "other": {"BACKEND": MEMORY}})
    happened("video:1", times=2)
    stores["other"].record(stores["default"].events()[:1])
    assert "3 events" in summary_of(page_of(operator.get(LIST)))

    # When one of them does not say what has happened, I expect no number
    silent(monkeypatch, "events")
    strip = summary_of(page_of(operator.get(LIST)))
    assert "<dt>locks</dt><dd>0</dd>" in strip
    assert "event" not in strip


def test_the_strip_needs_no_history(use_redis: UseRedis, operator: Client) -> None:
    use_redis(tasklock={"OPTIONS": {"HISTORY": 0}})
    acquire("video:1")
    page = page_of(operator.get(LIST))
    assert "<dt>locks</dt><dd>1</dd>" in page
    assert "tasklock-sparkline" not in page


def test_a_minute_that_was_not_looked_at_is_drawn_as_not_known() -> None:
    now = datetime.now(timezone.utc)
    drawn = sparkline([0] * 59 + [3], now, now - timedelta(minutes=10, seconds=30))
    assert '<rect class="tasklock-unknown" x="0" y="0" width="49" height="20"/>' in drawn
    assert drawn.count("<rect") == 2
    assert "unknown" not in sparkline([0] * 60, now, None)
    assert "Events by the minute: none." in sparkline([0] * 60, now, None)


# ------------------------------------------------------------------------------ times, tasks


def test_times_are_there_in_full_on_hover(on_redis: None, operator: Client) -> None:
    lease = acquire("video:1", 90)
    info = locks.get("video:1")
    assert info is not None
    assert info.acquired_at is not None
    page = page_of(operator.get(LIST))
    acquired = in_full(info.acquired_at)
    assert f'title="acquired at {acquired}" data-tasklock-label="age"' in page
    (expires,) = re.findall(
        r'<time class="tasklock-ttl" datetime="([^"]*)" title="expires at ', page
    )
    ends = datetime.now(timezone.utc) + timedelta(seconds=lease.remaining)
    assert abs(datetime.fromisoformat(expires) - ends) < timedelta(seconds=60)


def test_what_may_have_been_extended_is_not_said_to_have_expired(
    on_redis: None, operator: Client
) -> None:
    """A page counts down also where nobody asks the store again."""
    assert acquire("video:1", 60).extend(600)
    renewed = taken("video:2", renew=True)
    locks.hold("video:3", 60)
    with lock("video:4", hold_at_least=60):
        pass
    said = {
        name: re.findall('data-tasklock-over="([^"]*)"', page_of(operator.get(change(name))))
        for name in ("video:1", "video:2", "video:3", "video:4")
    }
    renewed.release()
    assert said == {
        "video:1": ["expired or extended"],
        "video:2": ["expired or renewed"],
        "video:3": ["expired"],
        "video:4": ["expired"],
    }


def test_a_time_at_the_end_of_all_time_is_shown() -> None:
    assert moment_in(1e300) is None
    with override_settings(TIME_ZONE="Asia/Tokyo"):
        end = datetime.max.replace(tzinfo=timezone.utc)
        assert in_full(end).startswith("9999-12-31")


def test_what_a_stranger_wrote_for_the_end_of_all_time_breaks_no_page(
    on_redis: None, operator: Client
) -> None:
    # Given an event of the last second before the year 10000
    happened("video:1")
    store: Any = stores["default"]
    ((_, entry),) = store.client.redis.xrange(store.keyspace.history)
    store.client.redis.xadd(store.keyspace.history, entry, id="253402300799000-0")

    # I expect every look at the history to show what it would show without
    with override_settings(TIME_ZONE="Pacific/Kiritimati"):
        assert "1 event " in words_of(operator.get(LIST))
        assert operator.get(f"{LIST}live/").status_code == 200
        assert "video:1" in words_of(operator.get(f"{LIST}contention/"))
        assert "video:1" in run("history", "--top")
    assert len(locks.history()) == 1


@override_settings(TASKLOCK_TASK_URL=LINK)
def test_task_ids_are_links_where_the_setting_says_so(on_redis: None, operator: Client) -> None:
    acquire("video:1", task="videos.process", task_id='a/"b c')
    happened("video:1")
    href = 'href="https://flower.example.com/task/a%2F%22b%20c?x={y}"'
    assert href in page_of(operator.get(LIST))
    assert href in page_of(operator.get(change("video:1")))
    happened("video:2", owner=HOLDER)
    assert "/task/id%2F1?x={y}" in page_of(operator.get(change("video:2")))
    assert "/task/id%2F1?x={y}" in page_of(operator.get(f"{LIST}contention/"))


@pytest.mark.parametrize("url", [None, "javascript:alert('{task_id}')", 7])
def test_without_a_right_setting_a_task_id_is_text(
    on_redis: None, operator: Client, url: Any
) -> None:
    acquire("video:1", task="videos.process", task_id="id-1")
    with override_settings(TASKLOCK_TASK_URL=url):
        page = page_of(operator.get(LIST))
    assert "id-1" in page
    assert "tasklock-task" not in page
    assert "javascript:" not in page
