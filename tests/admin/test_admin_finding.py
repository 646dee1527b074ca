"""What the list finds, in which order, and what that costs however many locks there are."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
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
from tests.admin.test_admin import (
    LIST,
    acquire,
    client_with,
    on_redis,
    operator,
    page_of,
    words_of,
)
from tests.admin.test_admin_live import LIVE, live, names
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.steps import orphan
from tests.store_cases import redis_cache

__all__ = ["client_with", "on_redis", "operator"]
pytestmark = pytest.mark.django_db


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
) -> None:
    # Given what is sought at the end of a list of many windows
    for number in range(350):
        acquire(f"job:{number:03}", 100 + number, task="jobs.run")
    acquire("Report:Last", 9000, task="reports.build", task_id="abc-1")
    orphan("orphan", ttl=9001)
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
