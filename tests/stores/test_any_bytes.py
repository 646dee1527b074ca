"""Bytes of every shape for all that reads what somebody else may have written: a reader takes them
for what they are not, or for nothing, and never raises. No server is asked."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

import pytest
from django.test import override_settings
from django_redis.serializers.json import JSONSerializer
from django_redis.serializers.pickle import PickleSerializer
from hypothesis import given, settings
from hypothesis import strategies as st

from django_tasklock import LockInfo
from django_tasklock._values.event import Event
from django_tasklock._values.owner import Owner, owner_record
from django_tasklock.celery.debounce import Burst
from django_tasklock.celery.message import RunNote
from django_tasklock.cli.tables import json_row, lock_cells
from django_tasklock.models import Lock
from django_tasklock.stores import stores
from django_tasklock.stores.record import new_record
from django_tasklock.stores.redis import handover
from django_tasklock.stores.redis.keyspace import Keyspace
from django_tasklock.stores.redis.notes import decoded_keys
from django_tasklock.stores.redis.store import RedisStore
from django_tasklock.stores.trail import event_of, text_of

TOKEN, FENCE, QUESTION = "0123456789abcdefghijkl", "1700000000000000", b"token:1"
NOW = datetime.now(timezone.utc)
EVENT = Event("cleared", "video:1", "default", NOW, Owner(), Owner(), 1.5, "ada", "why", 3, NOW)
RECORD = {**new_record(TOKEN, owner_record(), 1.0), "ttl": 60.0, "renew": True, "ends": 2.0}
SERIALIZERS = ("pickle.Pickle", "json.JSON", "msgpack.MSGPack")
CACHES = {
    serializer: {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": "redis://127.0.0.1:1",
        "OPTIONS": {
            "SERIALIZER": f"django_redis.serializers.{serializer}Serializer",
            "COMPRESSOR": "django_redis.compressors.zlib.ZlibCompressor",
        },
    }
    for serializer in SERIALIZERS
}


def record(data: bytes) -> None:
    """The value of a lock's key is shown, whatever it is, and nothing of it is run."""
    for serializer in SERIALIZERS:
        store = stores[serializer]
        assert isinstance(store, RedisStore)
        for info in (
            store.records.info("video:1", data, 60.0, b"1", 1, data),
            store.records.info("video:1", data, None),
        ):
            shown(info)


def shown(info: LockInfo) -> None:
    json.dumps(info.as_json()).encode()
    (str(json_row(info)) + str(lock_cells(info)) + repr(info)).encode()
    assert (info.token is None) == (info.digest is not None), "it is ours, or it has a digest"
    assert info.owner.alive() in (None, True, False)


def message(data: bytes) -> None:
    """A message to a waiter is for its question, or it is nothing."""
    for text in (data, QUESTION + b":" + data):
        assert handover.read(text, QUESTION) is None or text.startswith(QUESTION)


def event(data: bytes) -> None:
    """An entry of the history is an event that can be written again, or nothing."""
    found = event_of(data, "default", NOW)
    if found is not None:
        json.dumps(found.as_json()).encode()
        again = event_of(text_of(found).encode(), "default", NOW)
        assert again is not None
        assert (again.kind, again.name) == (found.kind, found.name)


def notes(data: bytes) -> None:
    """The notes of tasks, and their keys, count as none where they are not as they are written."""
    text = data.decode("utf-8", "surrogateescape")
    assert RunNote.read(text).starts >= 0
    json.dumps(RunNote.read(text).starts + 1)
    burst = Burst.read(text)
    if burst is not None:
        assert Burst.read(json.dumps(burst)) == burst
        # What a call that is sent counts with.
        float((burst.first - time.time_ns()) / 1e9)
        json.dumps(burst.last + 1000)
    for keyspace in (Keyspace(str, "lock", prepends=prepends) for prepends in (True, False)):
        for key in decoded_keys(keyspace, [data]):
            keyspace.note_member(key).encode()
        name = keyspace.name_of(data)
        assert name is None or keyspace.member(name).encode() == data


def form(data: bytes) -> None:
    """A form's field names a lease as a page has shown it, or is refused."""
    with suppress(ValueError):
        parts = Lock.parts_of(data.decode("utf-8", "replace"))
        assert Lock.parts_of(Lock.id_of(*parts)) == parts


SEEDS: Mapping[Callable[[bytes], None], Sequence[bytes]] = {
    record: [each({}).dumps(RECORD) for each in (PickleSerializer, JSONSerializer)],
    message: [f"{FENCE}:{FENCE}".encode(), f"={FENCE}:{FENCE}:60000:value".encode()],
    event: [text_of(EVENT).encode()],
    notes: [
        b'{"starts": 2, "by": "x"}',
        json.dumps(Burst(1, 1, "task")).encode(),
        # Numbers with which nothing can be counted.
        json.dumps(Burst(10**30, -(10**30), "task")).encode(),
        json.dumps({"starts": 10**400}).encode(),
    ],
    form: [
        Lock.id_of("default", "video:1").encode(),
        Lock.id_of("default", "video:1", "0" * 32).encode(),
    ],
}
"""what each reads when nothing is wrong"""
PARTS = [b'"starts"', b'"token"', b"\x8c\x05token", b'"kind"', b"NaN", b"1e999", b"9" * 30, b""]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.sampled_from(["starts", "pid", "token", "at", "kind", "name"]) | st.text(),
            inner,
            max_size=5,
        )
    ),
    max_leaves=8,
)


def near(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """What is read when nothing is wrong, with a part replaced; and parts of two together."""
    some, part = st.sampled_from([*seeds, b""]), st.sampled_from(PARTS) | st.binary(max_size=8)
    at = st.integers(0, 400)
    return st.builds(lambda a, b, part, i, j: a[:i] + part + b[j:], some, some, part, at, at)


@pytest.fixture(autouse=True, scope="module")
def without_servers() -> Iterator[None]:
    with override_settings(CACHES=CACHES, TASKLOCK={each: {"CACHE": each} for each in CACHES}):
        yield


@pytest.mark.parametrize("reader", SEEDS, ids=lambda reader: reader.__name__)
@settings(max_examples=150)
@given(data=st.data())
def test_any_bytes(reader: Callable[[bytes], Any], data: st.DataObject) -> None:
    as_json = JSON.map(lambda value: json.dumps(value).encode())
    reader(data.draw(st.binary() | as_json | near(SEEDS[reader])))


@pytest.mark.parametrize("reader", SEEDS, ids=lambda reader: reader.__name__)
def test_what_is_written_is_read(reader: Callable[[bytes], Any]) -> None:
    for content in SEEDS[reader]:
        reader(content)


def test_a_reader_that_trusts_what_it_reads_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunNote, "read", lambda text: RunNote(json.loads(text)["starts"]))
    with pytest.raises(ValueError, match="Expecting value"):
        notes(b"\xff")
