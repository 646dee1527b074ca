"""A list of more locks than one page of it holds, and a search among more than one window."""

from __future__ import annotations

import pytest
from django.core.cache import cache
from hypothesis import given
from hypothesis import strategies as st

from django_tasklock import StoreUnavailable, locks
from django_tasklock.stores.redis import listing
from tests.conftest import UseRedis
from tests.proxy import CutProxy

PAGE_LOCKS = 10
APART_SECONDS = 1000.0
"""seconds between the ends of two leases, and until the first: however long the test takes"""
NAMES = [f"video:{number:02}" for number in range(45)]


@pytest.fixture(autouse=True)
def little_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "RECORDS_PER_SCRIPT", PAGE_LOCKS)


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

    @pytest.mark.parametrize("limit", [0, 1, 9, 10, 11, 20, 44, 45, 46, 100])
    @pytest.mark.parametrize("offset", [0, 1, 10, 44, 45])
    def test_make_one_list(self, limit: int, offset: int) -> None:
        assert names(limit, offset) == NAMES[offset : offset + limit]
        assert names() == NAMES

    @pytest.mark.parametrize("number", [2**53, 2**63 - 1, 2**63, 10**30])
    def test_no_number_is_too_large(self, number: int) -> None:
        """The server knows none from 2**63 on: that is no outage."""
        assert names(number) == NAMES
        assert names(number, 40) == NAMES[40:]
        assert names(5, number) == []

    def test_names_are_read_some_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Others wait for a script that reads many, also where the limit is higher."""
        monkeypatch.setattr(listing, "NAMES_PER_SCRIPT", 7)
        for limit in (6, 7, 8, 45, 100, None):
            assert names(limit) == NAMES[:limit]
            assert names(limit, 3) == NAMES[3:][:limit]

    @given(deleted=st.sets(st.sampled_from(NAMES)), limit=st.none() | st.integers(0, 50))
    def test_are_filled_up_where_keys_were_deleted_by_hand(
        self, deleted: set[str], limit: int | None
    ) -> None:
        cache.delete_many([f"lock:{name}" for name in deleted])
        left = [name for name in NAMES if name not in deleted]
        assert names(limit) == left[:limit]
        assert names() == left
        for name in deleted:
            locks.acquire(name, ttl=APART_SECONDS * (1 + NAMES.index(name)))
        # Another is nothing to the next example, which begins with all of them again.
        assert names() == NAMES


class TestTrouble:
    @pytest.fixture(autouse=True)
    def through_a_proxy(self, use_redis: UseRedis, cut_proxy: CutProxy) -> None:
        use_redis(cut_proxy.url)
        hold()

    def request(self, page: int) -> bytes:
        """What is in the command that asks for the records of this page, and in no other."""
        first = NAMES[page * PAGE_LOCKS]
        return f"${len(first)}\r\n{first}\r\n".encode()

    @pytest.mark.parametrize("page", [0, 1, 2, 4])
    def test_page_whose_reply_is_lost_is_asked_for_again(
        self, cut_proxy: CutProxy, page: int
    ) -> None:
        cut_proxy.drop_reply(self.request(page))
        assert names() == NAMES
        assert cut_proxy.lost_replies == 1

    def test_outage_in_the_middle_is_no_shorter_list(self, cut_proxy: CutProxy) -> None:
        cut_proxy.drop_reply(self.request(2), times=99)
        with pytest.raises(StoreUnavailable):
            names()
