"""A list of more locks than one script reads, while the index moves."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.cache import cache

from django_tasklock import StoreUnavailable, locks
from django_tasklock.stores import stores
from django_tasklock.stores.records import LISTED
from tests.conftest import UseRedis
from tests.inside import list_in_little_scripts
from tests.proxy import CutProxy
from tests.steps import LONG
from tests.waiting import until

APART_SECONDS = 1000.0
"""seconds between the ends of two leases, and until the first: however long the test takes"""
NAMES = [f"video:{number:02}" for number in range(45)]


@pytest.fixture(autouse=True)
def little_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    list_in_little_scripts(monkeypatch, 10)


def hold() -> None:
    """The names, in the order in which they expire."""
    for number, name in enumerate(NAMES):
        assert locks.acquire(name, ttl=APART_SECONDS * (1 + number))


def names(limit: int | None = None, offset: int = 0) -> list[str]:
    return [info.name for info in locks.list(limit=limit, offset=offset)]


class TestPages:
    @pytest.fixture(autouse=True)
    def held(self, use_redis: UseRedis) -> None:
        use_redis()
        hold()

    def test_make_one_list(self) -> None:
        # Given more locks than four scripts read, I expect one list of them
        assert names() == NAMES

        # And any part of it
        for limit in (0, 1, 9, 10, 11, 44, 45, 46, 100):
            for offset in (0, 1, 10, 44, 45):
                assert names(limit, offset) == NAMES[offset : offset + limit]

    def test_those_that_were_deleted_by_hand_are_left_out(self) -> None:
        cache.delete_many([f"lock:{name}" for name in NAMES[5:25]])
        assert names() == NAMES[:5] + NAMES[25:]
        assert names(8) == NAMES[:5] + NAMES[25:28]

    def test_none_that_stays_is_left_out_or_listed_twice_while_others_move(self) -> None:
        """Leases are renewed and released, and new ones taken, between two scripts."""
        moving, staying = NAMES[::3], [name for name in NAMES if name not in NAMES[::3]]
        listed = []
        for number, info in enumerate(stores["default"].walk("video")):
            listed.append(info.name)
            name = moving[number % len(moving)]
            if number % 2:
                locks.clear(name)
            elif (lease := locks.acquire(name, ttl=LONG)) is not None:
                lease.extend(50 * APART_SECONDS)
        assert [name for name in listed if name in staying] == staying
        assert len(set(listed)) == len(listed)

    def test_more_may_end_in_one_millisecond_than_a_script_reads(self) -> None:
        store: Any = stores["default"]
        end = 10**13
        for name in NAMES:
            store.client.command("ZADD", store.keys.index, end, name)
        assert sorted(names()) == NAMES


class TestReservations:
    @pytest.fixture
    def store(self, use_redis: UseRedis) -> Any:
        use_redis()
        return stores["default"]

    def test_more_than_one_script_reads(self, store: Any) -> None:
        keys = [f"{LISTED[1:]}job {number}" for number in range(35)]
        for number, key in enumerate(keys):
            assert store.reserve(key, "id", LONG + number) is None
        assert [found.key for found in store.reservations()] == keys

    def test_nothing_is_left_of_what_has_ended(self, store: Any) -> None:
        """By themselves, or by the message's start."""
        for number in range(6):
            store.reserve(f"{LISTED[1:]}short {number}", "id", 0.05)
        store.reserve(f"{LISTED[1:]}long", "id", LONG)
        until(lambda: len([*store.reservations()]) == 1)
        store.reserve(f"{LISTED[1:]}next", "id", LONG)
        assert store.client.command("ZCARD", store.keys.listed) == 2
        assert store.unreserve(f"{LISTED[1:]}long", "id")
        assert store.client.command("ZCARD", store.keys.listed) == 1


def test_a_page_whose_reply_is_lost_is_asked_for_again_and_an_outage_is_no_shorter_list(
    use_redis: UseRedis, cut_proxy: CutProxy
) -> None:
    use_redis(cut_proxy.url)
    hold()
    # What is in the command that asks for the records of a page, and in no other.
    pages = [f"${len(NAMES[at])}\r\n{NAMES[at]}\r\n".encode() for at in (0, 20, 40)]
    for lost, page in enumerate(pages, 1):
        cut_proxy.drop_reply(page)
        assert names() == NAMES
        assert cut_proxy.lost_replies == lost
    cut_proxy.drop_reply(pages[1], times=99)
    with pytest.raises(StoreUnavailable):
        names()
