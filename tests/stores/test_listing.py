"""A list of more locks than one page of it holds, and a search among more than one window."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest
from django.core.cache import cache
from hypothesis import given
from hypothesis import strategies as st

from django_tasklock import LockInfo, StoreUnavailable, locks
from django_tasklock._values.liveness import Liveness
from django_tasklock._values.ordering import in_order
from django_tasklock._values.owner_record import COOLING, MARK, operator_record, owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores.criteria import Criteria
from django_tasklock.stores.redis import listing, record_test, searching, walking
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


class TestSearch:
    """The server leaves out what cannot match, window by window."""

    @pytest.fixture(autouse=True)
    def held_in_small_windows(self, use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(walking, "FIRST_NAMES", 7)
        monkeypatch.setattr(walking, "NAMES_PER_WINDOW", 50)
        monkeypatch.setattr(walking, "RECORDS_PER_PIECE", 20)
        monkeypatch.setattr(searching, "RECORDS_PER_TEST", 30)
        monkeypatch.setattr(searching, "DESCRIBED_PER_SCRIPT", 20)
        use_redis()
        chance = random.Random(7)
        for number in range(300):
            task = chance.choice(["videos.transcode", "отчёт.собрать", "straße.ſchön", None])
            owner: dict[str, Any] = owner_record(task, f"id-{number}")
            owner |= {} if number % 3 else {"host": "K\u212aelvin", "start": 1}
            owner |= {MARK: COOLING} if number % 20 == 1 else {}
            owner = operator_record("Алиса", "ﬁnal") if number % 20 == 2 else owner
            name = f"{chance.choice(['video', 'Report', 'ﬁlm'])}:{number}"
            ttl = APART_SECONDS * chance.choice([1, 5 + number])
            locks.store.acquire(name, new_token(), ttl, owner)

    @pytest.mark.parametrize("order", ["ttl", "-age", "name"])
    def test_finds_what_a_look_at_every_lock_finds(self, order: str) -> None:
        store, liveness, everything = locks.store, Liveness(), locks.store.list()
        assert names_of(list(store.walk())) == names_of(everything)
        words = ["video", "video:1", "7", "отчёт", "strasse", "schon", "kkelvin", "fi", "алиса"]
        for criteria in (
            *(Criteria(words=(word,)) for word in words),
            *(Criteria(prefix, words=("1",)) for prefix in ("", "video", "ﬁ", "none")),
            Criteria(task="videos.transcode"),
            Criteria(host="K\u212aelvin", words=("id-12",)),
            Criteria(within=2.5 * APART_SECONDS),
            Criteria(gone=True),
            Criteria(cooling=True),
        ):
            expected = in_order([i for i in everything if criteria.matches(i, liveness)], order)
            for most in (None, 0, 10, 500):
                found = store.search(criteria, order, most)
                assert names_of(found.infos) == names_of(expected)[:most], (criteria, most)
                assert found.more == (most is not None and len(expected) > most)

    def test_does_not_read_records_that_cannot_match(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store: Any = locks.store
        for number in range(200):
            store.acquire(f"plain:{number}", new_token(), APART_SECONDS, owner_record("a.b"))
        read: list[str] = []
        info = store.records.info

        def noting(name: str, *rest: Any) -> Any:
            read.append(name)
            return info(name, *rest)

        monkeypatch.setattr(store.records, "info", noting)
        for wanted in ({"words": ("987654",)}, {"task": "a.c"}, {"host": "elsewhere"}):
            store.search(Criteria("plain:", **wanted))
        # By chance the bytes of a time may look like what is looked for.
        assert len(read) < 10

    def test_removes_from_the_index_what_is_no_name(self) -> None:
        store: Any = locks.store
        index, before = store.keyspace.index, names()
        for strange in (b"", b"a b", b"\xff", b"x" * 201):
            store.client.ask("ZADD", [index], 10**13, strange)
            assert names_of(store.search(Criteria(), "ttl").infos) == before
            assert store.client.ask("ZSCORE", [index], strange) is None


def names_of(infos: list[LockInfo]) -> list[str]:
    return [info.name for info in infos]


def test_all_characters_that_fold_into_the_words_of_the_server_are_known() -> None:
    folded = {char: char.casefold() for char in map(chr, range(128, sys.maxunicode + 1))}
    found = {
        char
        for char, text in folded.items()
        if text != char and any(each.isascii() for each in text)
    }
    assert found == set(record_test.FOLDED_TO_ASCII)
