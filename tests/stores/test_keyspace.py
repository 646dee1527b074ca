"""The names of a store's keys."""

from __future__ import annotations

import pytest

from django_tasklock.stores.redis.keyspace import Keyspace


def keyspace(prefix: str = "lock") -> Keyspace:
    return Keyspace(lambda key: f":1:{key}", prefix)


def test_a_lock_has_a_key_and_shares_the_index_and_the_fences() -> None:
    assert keyspace().keys("video:1") == (
        b":1:lock:video:1", b":1:lock index", b":1:lock fences", b":1:lock:video:1 queue",
    )  # fmt: skip
    assert keyspace("").keys("video:1") == (
        b":1:video:1", b":1: index", b":1: fences", b":1:video:1 queue",
    )  # fmt: skip


@pytest.mark.parametrize("prefix", ["lock", ""])
def test_each_key_beside_the_locks_has_its_type(prefix: str) -> None:
    keys = keyspace(prefix)
    assert keys.type_of(keys.index) == keys.type_of(keys.reserved) == b"zset"
    assert keys.type_of(keys.fences) == b"hash"
    assert keys.type_of(keys.history) == b"stream"
    assert keys.type_of(keys.keys("video:1")[3]) == b"zset"
    assert keys.type_of(keys.cleared_key("video:1")) == b"string"


@pytest.mark.parametrize("prefix", ["lock", ""])
@pytest.mark.parametrize("word", ["queue", "cleared", "index", "video:1"])
def test_a_lock_and_a_note_may_have_any_type_whatever_their_names(prefix: str, word: str) -> None:
    keys = keyspace(prefix)
    assert keys.type_of(keys.key(word).encode()) is None
    assert keys.type_of(keys.note_key(f"queued task {word}")) is None


def test_locks_cannot_be_told_from_other_keys_without_a_prefix() -> None:
    assert keyspace().tells_locks_apart()
    assert not keyspace("").tells_locks_apart()
