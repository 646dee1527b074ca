"""The list that keeps itself up to date: its JSON, its filters, its order, and what they cost."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from django.test.utils import override_settings
from django.urls import reverse
from redis import Redis

from django_tasklock import locks
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.admin import changelist, rows, store_reader
from django_tasklock.operators import kept_search
from django_tasklock.operators.kept_search import question
from django_tasklock.stores.base import Note
from django_tasklock.stores.criteria import Criteria
from django_tasklock.stores.redis import searching, walking
from django_tasklock.stores.search import Found
from tests.conftest import UseCaches, UseRedis
from tests.integration.admin.test_admin import (
    LIST,
    UserWith,
    acquire,
    boxes_of,
    client_with,
    on_redis,
    operator,
    page_of,
    words_of,
)
from tests.servers import RedisServer
from tests.steps import waiting
from tests.store_cases import redis_cache
from tests.waiting import until

__all__ = ["client_with", "on_redis", "operator"]
pytestmark = pytest.mark.django_db
LIVE = f"{LIST}live/"


def live(client: Client, **asked: Any) -> dict[str, Any]:
    response = client.get(LIVE, asked)
    assert response.status_code == 200
    assert response["Content-Type"] == "application/json"
    said: dict[str, Any] = response.json()
    return said


def names(response: Any) -> list[str]:
    """The names on a page of the list, in its order."""
    return [json.loads(box)[2] for box in boxes_of(response)]


def orphan(name: str, env: dict[str, str], ttl: int = 60) -> None:
    script = (
        "import django, os; django.setup(); from django_tasklock import locks; "
        f"assert locks.acquire({name!r}, ttl={ttl}); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script], env=env, check=True, timeout=180)


def wait_in_queue(name: str, count: int) -> list[threading.Thread]:
    """That many threads that wait for a lock; they end when it is cleared."""

    def wait() -> None:
        lease = locks.acquire(name, ttl=60, wait=120)
        if lease is not None:
            lease.release()

    threads = [threading.Thread(target=wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    until(lambda: waiting(name) == count, f"{count} wait", 60)
    return threads


# ------------------------------------------------------------------------------ the record


def test_record_says_whether_it_is_renewed_and_for_how_long_it_was_granted(on_redis: None) -> None:
    plain = locks.acquire("plain", ttl=30)
    renewed = locks.acquire("renewed", ttl=40, renew=True)
    assert plain
    assert renewed
    cache.add("lock:foreign", 1, 50)
    for name, granted, renewing in (
        ("plain", 30, False), ("renewed", 40, True), ("foreign", None, None)
    ):  # fmt: skip
        info = locks.get(name)
        assert info is not None
        assert (info.granted, info.renewing) == (granted, renewing)
    assert [info.renewing for info in locks.list()] == [False, True]
    renewed.release()


def test_listing_counts_each_wait_queue_in_the_same_round_trip(
    use_redis: UseRedis, own_redis_server: RedisServer
) -> None:
    # Given three locks, of which the middle one is waited for
    use_redis(own_redis_server.url)
    held = [acquire(f"job:{number}", 100 + number) for number in range(3)]
    threads = wait_in_queue("job:1", 2)
    try:
        with Redis.from_url(own_redis_server.url) as client:
            client.config_resetstat()
            # I expect the list to say so, in as many scripts as before: a page and its records
            assert [info.waiters for info in locks.list()] == [0, 2, 0]
            stats = client.info("commandstats")
        assert stats["cmdstat_evalsha"]["calls"] <= 2
    finally:
        for lease in held:
            lease.release()
        for thread in threads:
            thread.join(60)


# ------------------------------------------------------------------------------ the cells


def test_list_says_who_renews_who_waits_and_draws_a_bar(on_redis: None, operator: Client) -> None:
    held = acquire("waited:for", 90)
    renewed = locks.acquire("kept", ttl=100, renew=True)
    assert renewed
    threads = wait_in_queue("waited:for", 1)
    try:
        page = page_of(operator.get(LIST))
    finally:
        held.release()
        for thread in threads:
            thread.join(60)
        renewed.release()
    first, second = re.findall(r"<tr><td class=.*?</tr>", page, re.DOTALL)
    assert re.search(r'class="field-waiters[^>]*><span[^>]*>1<', first)
    assert ">not renewed<" in first
    assert re.search(r'class="field-waiters[^>]*><span[^>]*>0<', second)
    assert ">renewed<" in second
    ((most, left),) = re.findall(r'<progress [^>]*max="([\d.]+)" value="([\d.]+)"', first)
    assert float(most) == 90
    assert 0 < float(left) <= 90


# ------------------------------------------------------------------------------ JSON


def test_live_says_what_the_list_shows(on_redis: None, operator: Client) -> None:
    acquire("video:1", task="videos.transcode")
    acquire("other")
    said = live(operator, q="transcode")
    (row,) = said["rows"]
    html = "".join(row["cells"])
    link = reverse("admin:django_tasklock_lock_change", args=["default_3Avideo_3A1"])
    assert "videos.transcode" in html
    # Its links keep the search, as the list's own do
    assert f'href="{link}?_changelist_filters=q%3Dtranscode"' in html
    assert said["count"] == 1
    assert "1 lock" in said["pagination"]
    assert said["problems"] == []
    assert "video:1" in words_of(operator.get(LIST, {"q": "transcode"}))


def test_live_id_is_the_leases_and_does_not_tell_its_token(
    on_redis: None, client_with: UserWith
) -> None:
    viewer = client_with("view_lock")
    first = acquire("video:1")
    response = viewer.get(LIVE)
    (row,) = response.json()["rows"]
    assert row["id"] == live(viewer)["rows"][0]["id"]
    assert first.token not in response.content.decode()
    assert first.token not in page_of(viewer.get(LIST))
    assert f'data-tasklock-row="{row["id"]}"' in page_of(viewer.get(LIST))
    first.release()
    acquire("video:1")
    assert live(viewer)["rows"][0]["id"] != row["id"]


def test_live_of_a_store_that_is_down(
    use_redis: UseRedis, own_redis_server: RedisServer, operator: Client
) -> None:
    use_redis(own_redis_server.url)
    acquire("video:1")
    own_redis_server.kill()
    (problem,) = live(operator)["problems"]
    assert "The store “default” is unavailable" in problem


def test_live_of_wrong_settings_and_of_a_page_that_is_gone(
    on_redis: None, use_caches: UseCaches, operator: Client
) -> None:
    assert live(operator, p="7", nonsense="1")["gone"] is True
    use_caches(
        {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
        {"default": {"BACKEND": "no.such.Store"}},
    )
    assert "no.such.Store" in live(operator)["problems"][0]


# ------------------------------------------------------------------------------ the sidebar


def test_filters_by_task_and_host(on_redis: None, operator: Client) -> None:
    lease = acquire("video:1", task="videos.transcode")
    acquire("video:2", task="videos.publish")
    host = lease.owner.host
    page = page_of(operator.get(LIST))
    for choice in ("?task=videos.publish", "?task=videos.transcode", f"?host={host}"):
        assert f'href="{choice}"' in page
    assert names(operator.get(LIST, {"task": "videos.publish"})) == ["video:2"]
    assert names(operator.get(LIST, {"task": "none"})) == []
    assert len(names(operator.get(LIST, {"host": host or ""}))) == 2
    assert names(operator.get(LIST, {"host": "elsewhere"})) == []
    assert names(operator.get(LIST, {"host": host or "", "task": "videos.publish", "q": "2"})) == [
        "video:2"
    ]


def test_filters_by_state(
    on_redis: None, operator: Client, process_env: Callable[[], dict[str, str]]
) -> None:
    acquire("long", 600)
    acquire("short", 40)
    orphan("orphan", process_env())
    cache.add("lock:forever", 1, timeout=None)
    assert names(operator.get(LIST, {"state": "gone"})) == ["orphan"]
    assert sorted(names(operator.get(LIST, {"state": "soon"}))) == ["orphan", "short"]
    endless = operator.get(LIST, {"state": "endless"})
    assert names(endless) == ["forever"]
    assert "tasklock-live" in page_of(operator.get(LIST))
    assert len(names(operator.get(LIST, {"state": "nonsense"}))) == 3


def test_filters_by_store(
    use_caches: UseCaches, redis_server: RedisServer, operator: Client
) -> None:
    use_caches(
        {"default": redis_cache(redis_server.url), "second": redis_cache(redis_server.url)},
        {"default": {}, "other": {"CACHE": "second"}},
    )
    acquire("here")
    locks.using("other").acquire("there", ttl=30)
    assert 'href="?store=other"' in page_of(operator.get(LIST))
    assert names(operator.get(LIST, {"store": "other"})) == ["there"]
    assert names(operator.get(LIST, {"store": "nowhere"})) == []
    assert len(names(operator.get(LIST))) == 2


def test_filter_of_one_store_is_not_offered(on_redis: None, operator: Client) -> None:
    acquire("here")
    assert "?store=" not in page_of(operator.get(LIST))


def test_unknown_parameter_leads_to_the_list(on_redis: None, operator: Client) -> None:
    response = operator.get(LIST, {"nonsense": "1"})
    assert response.status_code == 302
    assert response["Location"] == f"{LIST}?e=1"


# ------------------------------------------------------------------------------ order


@pytest.fixture
def three(on_redis: None) -> None:
    acquire("b", 300)
    acquire("c", 100)
    acquire("a", 200)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (1, ["a", "b", "c"]),
        (-1, ["c", "b", "a"]),
        (2, ["c", "a", "b"]),
        (-2, ["b", "a", "c"]),
        (3, ["a", "c", "b"]),  # the youngest first
        (-3, ["b", "c", "a"]),
        (4, ["c", "a", "b"]),  # not a column to sort by
        (99, ["c", "a", "b"]),
    ],
)
def test_order(three: None, operator: Client, column: int, expected: list[str]) -> None:
    assert names(operator.get(LIST, {"o": column})) == expected
    # And so with a search
    searched: dict[str, Any] = {"o": column, "host": locks.list()[0].owner.host}
    assert names(operator.get(LIST, searched)) == expected


def test_headers_offer_the_five_orders(three: None, operator: Client) -> None:
    page = page_of(operator.get(LIST))
    (head,) = re.findall(r"<thead>.*?</thead>", page, re.DOTALL)
    assert len(re.findall(r'<th scope="col" class="sortable', head)) == 5
    # The list is in the order of its TTLs, and says so
    assert re.search(r'class="sortable column-ttl sorted ascending"', head)


def test_order_backwards_goes_on_over_pages(on_redis: None, operator: Client) -> None:
    for number in range(150):
        acquire(f"job:{number:03}", 1000 + number)
    seen = names(operator.get(LIST, {"o": -2})) + names(operator.get(LIST, {"o": -2, "p": 2}))
    assert seen == [f"job:{number:03}" for number in reversed(range(150))]


@pytest.fixture
def two_stores(use_caches: UseCaches, redis_server: RedisServer) -> None:
    """Two locks in each, whose TTLs lie between each other's."""
    use_caches(
        {"default": redis_cache(redis_server.url), "second": redis_cache(redis_server.url)},
        {"default": {}, "second": {"CACHE": "second"}},
    )
    for ttl, store in ((100, "default"), (200, "second"), (300, "default"), (400, "second")):
        locks.using(store).acquire(f"job:{ttl}", ttl=ttl)


def test_what_was_found_in_two_stores_is_sorted_as_one(two_stores: None, operator: Client) -> None:
    expected = ["job:100", "job:200", "job:300", "job:400"]
    for asked in ({"q": "job"}, {"host": str(locks.list()[0].owner.host)}):
        assert names(operator.get(LIST, asked)) == expected
        assert names(operator.get(LIST, {**asked, "o": "-3"})) == expected[::-1]


def test_exact_name_takes_its_place_in_the_order(two_stores: None, operator: Client) -> None:
    # Given a key that no index knows, whose name occurs in another's
    cache.add("lock:job", 1, 150)
    assert names(operator.get(LIST, {"q": "job"})) == [
        "job:100", "job", "job:200", "job:300", "job:400"
    ]  # fmt: skip


def test_list_of_two_stores_says_how_it_is_sorted(two_stores: None, operator: Client) -> None:
    note = "The stores follow one another; each is sorted separately."
    response = operator.get(LIST)
    assert names(response) == ["job:100", "job:300", "job:200", "job:400"]
    assert note in words_of(response)
    for asked in ({"q": "job"}, {"store": "second"}, {"o": "1"}):
        assert note not in words_of(operator.get(LIST, asked))
    locks.using("second").clear("job:200")
    locks.using("second").clear("job:400")
    assert note not in words_of(operator.get(LIST))


# ------------------------------------------------------------------------------ costs


def commands(server: RedisServer) -> dict[str, int]:
    with Redis.from_url(server.url) as client:
        stats = client.info("commandstats")
    return {verb.removeprefix("cmdstat_"): stat["calls"] for verb, stat in stats.items()}


@pytest.fixture
def little_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages count few locks beyond their own; the server reads few at once."""
    monkeypatch.setattr(rows, "COUNTED_AHEAD", 50)
    monkeypatch.setattr(walking, "FIRST_NAMES", 100)
    monkeypatch.setattr(walking, "NAMES_PER_WINDOW", 200)
    monkeypatch.setattr(searching, "RECORDS_PER_TEST", 100)


def test_page_costs_no_more_where_many_match(
    use_redis: UseRedis, own_redis_server: RedisServer, operator: Client, little_windows: None
) -> None:
    # Given a Redis that nobody else uses
    use_redis(own_redis_server.url)
    asked: list[dict[str, str]] = [
        {}, {"p": "3"}, {"o": "-2"}, {"q": "job"}, {"q": "job*"}, {"task": "jobs.run"},
        {"p": "2", "task": "jobs.run"},
    ]  # fmt: skip

    def cost() -> list[dict[str, int]]:
        """Every command that the server ran for each of them, within scripts too."""
        costs = []
        for url, query in [(LIVE, {}), *((LIST, query) for query in asked)]:
            before = commands(own_redis_server)
            assert operator.get(url, query).status_code == 200
            after = commands(own_redis_server)
            costs.append(
                {
                    verb: calls - before.get(verb, 0)
                    for verb, calls in after.items()
                    if verb not in ("info", "client|setinfo", "select", "hello")
                }
            )
        return costs

    for number in range(300):
        acquire(f"job:{number}", 2000 + number, task="jobs.run")
    cost()  # scripts are loaded, connections made
    few = cost()

    # When there are three times as many
    for number in range(600):
        acquire(f"more:{number}", 4000 + number, task="jobs.run")

    # I expect the same commands, as many times
    assert cost() == few


def test_what_is_there_is_found_however_many_there_are(
    on_redis: None,
    operator: Client,
    little_windows: None,
    process_env: Callable[[], dict[str, str]],
) -> None:
    # Given what is sought at the end of a list of many windows
    for number in range(350):
        acquire(f"job:{number:03}", 100 + number, task="jobs.run")
    acquire("Report:Last", 9000, task="reports.build", task_id="abc-1")
    orphan("orphan", process_env(), ttl=9001)
    for asked, expected in (
        ({"q": "report:last"}, ["Report:Last"]),
        ({"q": "Rep*"}, ["Report:Last"]),
        ({"q": "rep*"}, []),
        ({"q": "orts.bui ABC-1"}, ["Report:Last"]),
        ({"task": "reports.build"}, ["Report:Last"]),
        ({"state": "gone"}, ["orphan"]),
        ({"q": "job:349"}, ["job:349"]),
        ({"q": "job:2*", "o": "-1", "p": "1"}, [f"job:2{n:02}" for n in reversed(range(100))]),
    ):
        response = operator.get(LIST, asked)
        assert names(response) == expected, asked
        assert f"{len(expected)} result" in words_of(response)
    oldest = names(operator.get(LIST, {"o": "-3"}))
    assert oldest == [f"job:{number:03}" for number in range(100)]
    assert names(operator.get(LIST, {"o": "3"}))[:3] == ["orphan", "Report:Last", "job:349"]
    assert names(operator.get(LIST, {"o": "-3", "p": "4"}))[-2:] == ["Report:Last", "orphan"]


def test_page_says_when_more_match_than_were_counted(
    on_redis: None, operator: Client, little_windows: None
) -> None:
    for number in range(320):
        acquire(f"job:{number:03}", 1000 + number, task="jobs.run")
    asked: dict[str, Any] = {"task": "jobs.run"}

    def note(count: int) -> str:
        return f"More than {count} locks of “default” match."

    first = operator.get(LIST, asked)
    assert names(first) == [f"job:{number:03}" for number in range(100)]
    assert note(150) in words_of(first)
    # The last page shows what comes after it
    assert note(250) in words_of(operator.get(LIST, {**asked, "p": 2}))
    whole = operator.get(LIST, {**asked, "p": 4})
    assert names(whole) == [f"job:{number:03}" for number in range(300, 320)]
    assert "More than" not in words_of(whole)
    not_asked: list[dict[str, Any]] = [{}, {"o": "1"}]
    for not_narrowed in not_asked:
        response = operator.get(LIST, not_narrowed)
        assert "More than" not in words_of(response)
        assert "320 locks" in words_of(response)


def test_order_by_waiters_shows_first_what_is_waited_for(on_redis: None, operator: Client) -> None:
    for name in ("a", "b", "c"):
        acquire(name)
    waiter = locks.store.waiter("b", new_token(), 60.0, owner_record())
    assert waiter is not None
    waiter.ask()
    assert names(operator.get(LIST, {"o": "-6"})) == ["b", "a", "c"]
    waiter.leave()


def test_order_by_wait_shows_first_what_is_waited_for_longest(
    on_redis: None, operator: Client
) -> None:
    for name in ("a", "b", "c"):
        acquire(name)
    waiters = [locks.store.waiter(name, new_token(), 60.0, owner_record()) for name in ("c", "b")]
    for waiter in waiters:
        assert waiter is not None
        waiter.ask()
    response = operator.get(LIST, {"o": "-7"})
    assert names(response) == ["c", "b", "a"]
    first, second, third = re.findall(
        r'<td class="field-longest_wait[^>]*>(.*?)</td>', page_of(response)
    )
    (since,) = (owner.waiting_since for owner in locks.waiters("c"))
    assert since is not None
    assert f'datetime="{since.replace(microsecond=0).isoformat()}"' in first
    assert 'title="waits since 20' in second
    assert third == "-"
    for waiter in waiters:
        assert waiter is not None
        waiter.leave()


def test_page_of_a_large_store_updates_itself_where_searches_are_kept(
    on_redis: None, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelist, "MAX_LOCKS_REFRESHED", 2)
    for number in range(3):
        acquire(f"job:{number}")
    for asked in ({}, {"q": "job"}, {"state": "endless"}):
        assert "tasklock-live" in page_of(operator.get(LIST, asked)), asked
    monkeypatch.setattr(type(locks.store), "keeps_searches", False)
    assert "tasklock-live" in page_of(operator.get(LIST))
    assert "tasklock-live" not in page_of(operator.get(LIST, {"q": "job"}))
    assert "tasklock-live" not in page_of(operator.get(LIST, {"state": "endless"}))
    locks.clear("job:1")
    assert "tasklock-live" in page_of(operator.get(LIST, {"q": "job"}))


@pytest.mark.parametrize("asked", [{"q": "job"}, {"o": "1"}, {"state": "endless"}])
def test_page_of_a_kept_search_says_when_it_was_searched(
    on_redis: None, operator: Client, monkeypatch: pytest.MonkeyPatch, asked: dict[str, str]
) -> None:
    monkeypatch.setattr(store_reader, "KEPT_FROM_LOCKS", 2)
    monkeypatch.setattr(kept_search, "KEPT_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(kept_search, "SHORTEST_KEPT_SECONDS", 60.0)
    for number in range(4):
        acquire(f"job:{number}")
        cache.add(f"lock:job:old:{number}", "x", timeout=None)
    matched = "of the locks that matched at"
    first = operator.get(LIST, asked)
    assert matched not in words_of(first)
    shown = names(first)
    assert len(shown) == 4

    # Given one that is gone, and one that is new
    locks.clear(shown[1])
    acquire("job:9")
    second = operator.get(LIST, asked)
    assert matched in words_of(second)
    assert names(second) == [shown[0], *shown[2:]]
    said = live(operator, **asked)
    assert matched in said["as_of"]
    assert len(said["rows"]) == 3

    # What is not searched, and what a store does not keep, is of now
    assert matched not in words_of(operator.get(LIST))
    monkeypatch.setattr(type(locks.store), "keeps_searches", False)
    if "state" not in asked:
        assert "job:9" in names(operator.get(LIST, asked))


def test_both_times_of_a_kept_search_are_the_sites(
    on_redis: None, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_reader, "KEPT_FROM_LOCKS", 0)
    monkeypatch.setattr(kept_search, "KEPT_AFTER_SECONDS", 0.0)
    acquire("job:1")
    with override_settings(TIME_ZONE="Asia/Kolkata"):
        operator.get(LIST, {"q": "job"})
        words = words_of(operator.get(LIST, {"q": "job"}))
    found = re.search(r"As of (\S+), of the locks that matched at (\S+)", words)
    assert found
    now, matched = (datetime.fromisoformat(f"2026-01-01T{time}+00:00") for time in found.groups())
    assert (now - matched) % timedelta(days=1) < timedelta(minutes=5)


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[" * 100_000,
        "[1, false]",
        '[NOW, 1, "a"]',
        '[NOW, false, "a\\n"]',
        '[LATER, false, "a"]',
    ],
    ids=range(6),
)
def test_what_somebody_else_wrote_for_a_kept_search_is_not_believed(
    on_redis: None, text: str
) -> None:
    acquire("job:1")
    now = time.time()
    text = text.replace("NOW", str(now)).replace("LATER", str(now + 9000))
    asked, looks = question(Criteria(), "ttl", False), []

    def look(most: int) -> Found:
        looks.append(most)
        return locks.store.search(Criteria(), "ttl", most)

    locks.store.set_note(Note(asked, text, 60))
    found = kept_search.kept_search(locks.store, asked, look, lambda _info: True, 100, 1000)
    assert [info.name for info in found.infos] == ["job:1"]
    assert len(looks) == 1


def test_page_of_keys_without_a_ttl_has_no_more_rows_than_others(
    on_redis: None, operator: Client, little_windows: None
) -> None:
    for number in range(170):
        cache.add(f"lock:old:{number}", "x", timeout=None)
    acquire("young")
    response = operator.get(LIST, {"state": "endless"})
    assert len(names(response)) == 100
    assert "More than 150 locks" in words_of(response)
    assert len(names(operator.get(LIST, {"state": "endless", "p": "2"}))) == 70
    assert names(operator.get(LIST, {"state": "endless", "q": "old:169"})) == ["old:169"]


def test_store_without_a_list_has_filters_all_the_same(on_locmem: None, operator: Client) -> None:
    for asked in ({"state": "endless"}, {"task": "x"}, {"o": "1"}):
        assert "cannot list its locks" in words_of(operator.get(LIST, asked))
