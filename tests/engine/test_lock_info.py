"""What is listed is a plain value, though its record is decoded only when it is looked at."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from typing import Any

import pytest
from django.core.cache import cache

from django_tasklock import LockInfo, locks
from django_tasklock._values.owner import Owner
from django_tasklock.stores import stores
from tests.conftest import UseRedis
from tests.steps import LONG, holder, taken


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The values that were decoded."""
    seen: list[bytes] = []
    client: Any = stores["default"].client  # type: ignore[attr-defined]
    decode: Callable[[bytes], Any] = client.decode

    def spy(value: bytes) -> Any:
        seen.append(value)
        return decode(value)

    monkeypatch.setattr(client, "decode", spy)
    return seen


def in_full(info: LockInfo) -> LockInfo:
    return LockInfo(**{field.name: getattr(info, field.name) for field in fields(info)})


class TestDecoding:
    def test_nothing_is_decoded_for_the_sake_of_names(self, decoded: list[bytes]) -> None:
        for number in range(5):
            taken(f"video:{number}")
        listed = locks.list()
        assert [info.name for info in listed] == [f"video:{number}" for number in range(5)]
        assert all(0 < (info.ttl or 0) <= LONG and info.waiters == 0 for info in listed)
        assert not decoded

    def test_one_look_decodes_one_record_once(self, decoded: list[bytes]) -> None:
        lease = taken("video:1")
        taken("video:2")
        listed = locks.list()
        info = listed[0]
        assert (info.token, info.fence, info.owner) == (lease.token, lease.fence, lease.owner)
        assert info.acquired_at is not None
        assert len(decoded) == 1

    def test_record_that_cannot_be_decoded_is_a_lock_all_the_same(self) -> None:
        store: Any = stores["default"]
        store.client.redis.set(store.key("video:1"), b"\x80 no pickle", px=60_000)
        info = holder("video:1")
        assert (info.token, info.acquired_at, info.fence) == (None, None, None)
        assert info.owner == Owner()

    def test_record_may_look_like_a_number(self) -> None:
        for value in (7, -7, "7", b"7", " 7", "+7", "٧", ""):
            cache.set("lock:video:1", value, 60)
            info = holder("video:1")
            key = cache.make_key("lock:video:1")
            assert (info.token, info.owner, info.key) == (None, Owner(), key)


class TestValue:
    def test_equals_itself_read_in_full(self) -> None:
        taken("video:1")
        (info,) = locks.list()
        again = holder("video:1")
        assert info == in_full(info)
        assert in_full(info) == info
        assert hash(info) == hash(in_full(info))
        assert replace(again, ttl=info.ttl) == info

    def test_can_be_pickled_copied_and_printed_unread(self, decoded: list[bytes]) -> None:
        lease = taken("video:1")
        for made in (
            *(pickle.loads(pickle.dumps(holder("video:1"), n)) for n in range(2, 6)),
            copy.copy(holder("video:1")),
            copy.deepcopy(holder("video:1")),
        ):
            assert isinstance(made, LockInfo)
            assert (made.name, made.token, made.fence) == ("video:1", lease.token, lease.fence)
        assert f"token={lease.token!r}" in repr(holder("video:1"))
        assert asdict(holder("video:1"))["owner"]["pid"] == lease.owner.pid

    def test_does_not_change(self) -> None:
        taken("video:1")
        info = holder("video:1")
        for name in ("name", "token"):
            with pytest.raises(AttributeError):
                setattr(info, name, "another")

    def test_has_no_other_attributes(self) -> None:
        taken("video:1")
        info = holder("video:1")
        assert not hasattr(info, "colour")
        assert not hasattr(LockInfo.__new__(LockInfo), "token")
