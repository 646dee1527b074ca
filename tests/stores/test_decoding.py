"""How a record is found in a value, whatever the cache's serializer puts around it; and
the names of a store's keys in Redis.

All that reads what somebody else may have written takes bytes of every shape for what they are not,
or for nothing, and never raises. No server is asked.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_tasklock import locks
from django_tasklock._values.lock_info import Event, LockKeys, kept_key
from django_tasklock._values.owner import Owner, operator_record, owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.celery.debounce import Burst
from django_tasklock.celery.note import RunNote
from django_tasklock.models import Lock
from django_tasklock.stores.event_text import event_of, text_of
from django_tasklock.stores.records import (
    LONGEST_RECORD_BYTES,
    Entry,
    digest_of,
    info_of,
    new_record,
    note_of,
    note_record,
    plain_note,
    record_of,
    text_of_record,
    waiter_of,
)
from django_tasklock.stores.redis.keys import Keys
from tests.conftest import UseRedis
from tests.inside import show_everywhere
from tests.steps import LONG
from tests.tenants import current, make_key, tenant

RECORD = {
    **new_record(
        "0123456789abcdefghijkl", owner_record("videos.процесс", 'an "id" \\'), "a-version"
    ),
    "ttl": 60.0,
    "renew": True,
    "since": 2.0,
}
RECORDS = [RECORD, new_record(new_token(), operator_record("维", "")), note_record('{"a": "}"}')]


class Loud:
    """Unpickling it raises."""

    def __reduce__(self) -> Any:
        return exec, ("raise AssertionError('it was run')",)


def packed(text: str) -> bytes:
    """As msgpack has it."""
    data = text.encode()
    return b"\xda" + len(data).to_bytes(2, "big") + data


@pytest.mark.parametrize("record", RECORDS, ids=["lease", "hold", "note"])
def test_a_record_is_read_from_what_every_serializer_writes(record: dict[str, Any]) -> None:
    # Given a record as each serializer writes it
    text = text_of_record(record)
    assert text.isascii()
    encoders: list[Any] = [str, str.encode, json.dumps, packed]
    encoders += [partial(pickle.dumps, protocol=each) for each in range(1, 6)]  # 0 is refused.

    # I expect it to be found there
    for encode in encoders:
        assert record_of(encode(text)) == record, encode


def test_nothing_of_a_value_is_run() -> None:
    for protocol in range(6):
        bomb = pickle.dumps([Loud(), text_of_record(RECORD)], protocol)
        assert record_of(bomb) in (None, RECORD)
        assert record_of(pickle.dumps({**RECORD, "task": Loud()}, protocol)) is None


WRONG: dict[str, Any] = {
    "no token": {"token": None},
    "a token of another shape": {"token": "abc"},
    "a token that is a number": {"token": 5},
    "a version that is no text": {"version": 1},
    "a time that is none": {"at": "now"},
    "a time before there was any": {"at": -1.0},
    "a time after the last": {"at": 1e300},
    "no number": {"ttl": float("nan")},
    "a ttl of nothing": {"ttl": 0},
    "a pid that is no number": {"pid": "1"},
    "a pid that is True": {"pid": True},
    "a host of two lines": {"host": "a\nb"},
    "a hold with a process": {"held_by": "ada"},
    "a task that is no text": {"task": ["a"]},
    "an id that is a number": {"task_id": 7},
    "a note under another token": {"text": "started"},
    "renewed, perhaps": {"renew": 1},
    "an end that is no moment": {"ends": "abc"},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_we_could_not_have_written_is_no_record(wrong: dict[str, Any]) -> None:
    assert record_of(text_of_record({**RECORD, **wrong})) is None


@pytest.mark.parametrize(
    "value", ["", "{", "}{", "[]", "{}", "null", '{"a"}', '"{\\"}', "{" * 9000]
)
def test_what_is_no_json_is_no_record(value: str) -> None:
    assert record_of(value) is None
    assert record_of(value.encode()) is None


def test_a_long_value_is_not_looked_into() -> None:
    text = text_of_record(RECORD)
    assert record_of(text.ljust(LONGEST_RECORD_BYTES)) == RECORD
    assert record_of(text.ljust(LONGEST_RECORD_BYTES + 1)) is None


NOW = datetime.now(timezone.utc)
AT = repr(NOW.timestamp()).encode()
EVENT = Event("cleared", "video:1", "default", NOW, Owner(), Owner(), 1.5, "ada", "why", 3, NOW)


def record(data: bytes) -> None:
    """The value of a lock's key is shown, whatever it is, and nothing of it is run."""
    found = record_of(data)
    digest = None if found else digest_of(data)
    for left, fence in ((60.0, 1), (None, None)):
        show_everywhere(
            info_of(Entry("video:1", found, left, fence, digest), "default", "lock:video:1")
        )
    if found is not None:
        assert record_of(text_of_record(found)) == found
        str(waiter_of(found).waiting_since)


def event(data: bytes) -> None:
    """An entry of the history is an event that can be written again, or nothing."""
    found = event_of(data, "default", AT)
    if found is not None:
        json.dumps(found.as_json()).encode()
        again = event_of(text_of(found).encode(), "default", AT)
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


def plain(data: bytes) -> None:
    """What is under a note's name is a note that can be written again, or counts as none."""
    found = note_of(data)
    if found is not None and "text" in found:
        again = note_of(plain_note(found["text"]))
        assert again is not None
        assert (again["token"], again["text"]) == (found["token"], found["text"])


def name(data: bytes) -> None:
    """A member of the index is a name with that member, or nothing."""
    for prepends in (True, False):
        keys = Keys(lambda key: f"1:{key}", "lock", "default", prepends=prepends)
        found = keys.name_of(data)
        assert found is None or keys.of(found).member == data


def form(data: bytes) -> None:
    """A form's field names a lease as a page has shown it, or is refused."""
    with suppress(ValueError):
        parts = Lock.parts_of(data.decode("utf-8", "replace"))
        assert Lock.parts_of(Lock.named(*parts).id) == parts


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


SEEDS: Mapping[Callable[[bytes], None], Sequence[bytes]] = {
    record: [each(text_of_record(RECORD)) for each in (str.encode, pickle.dumps, as_json)],
    plain: [
        plain_note("s1 a-token"),
        pickle.dumps(text_of_record(note_record("a-task-id", "queued " + 300 * "a"))),
    ],
    name: [b"video:1", b" queued a", b"video:1\n1:lock:video:1"],
    event: [text_of(EVENT).encode()],
    notes: [
        *(b"s2 a-token", b"e1 8782 38322 AbCdEf", b"w"),
        json.dumps(Burst(1, 1, "task")).encode(),
        # Numbers with which nothing can be counted.
        json.dumps(Burst(10**30, -(10**30), "task")).encode(),
        b"s" + b"9" * 400 + b" a-token",
    ],
    form: [
        Lock.named("default", "video:1").id.encode(),
        Lock.named("default", "video:1", "0" * 32).id.encode(),
    ],
}
"""what each reads when nothing is wrong"""
PARTS = [b"s9 ", b'"token"', b"\x8c\x05token", b'"kind"', b"NaN", b"1e999", b"9" * 30, b""]
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


@pytest.mark.parametrize("reader", SEEDS, ids=lambda reader: reader.__name__)
@settings(max_examples=150)
@given(data=st.data())
def test_any_bytes(reader: Callable[[bytes], Any], data: st.DataObject) -> None:
    reader(data.draw(st.binary() | JSON.map(as_json) | near(SEEDS[reader])))


@pytest.mark.parametrize("reader", SEEDS, ids=lambda reader: reader.__name__)
def test_what_is_written_is_read(reader: Callable[[bytes], Any]) -> None:
    for content in SEEDS[reader]:
        reader(content)


def keys(prefix: str = "lock") -> Keys:
    return Keys(lambda key: f":1:{key}", prefix, "default", prepends=True)


def keys_of_tenants() -> Keys:
    return Keys(lambda key: make_key(key, "site", 1), "lock", "default", prepends=False)


def test_a_lock_has_a_key_and_a_queue_and_shares_the_rest() -> None:
    # Given the keys of a store, with a prefix and without one
    for prefix, start in (("lock", b":1:lock:"), ("", b":1:")):
        made = keys(prefix)

        # I expect a lock to have a key and a wait queue of its own
        lock = made.of("video:1")
        assert lock.key == start + b"video:1"
        assert lock.queue == lock.permits == start + b"video:1 queue"

        # And no note's key to be one of those that all locks share
        shared = made.index, made.listed, made.fences, made.history
        notes = {made.of(f" {what}").key for what in ("index", "listed", "fences", "history")}
        assert len({*shared, *notes}) == 8


def test_the_permits_of_a_name_may_have_one_queue() -> None:
    """A plain lock may have such a name too: its record says which it is."""
    made = keys()
    permit = made.of("report#12")
    assert permit.queue == b":1:lock:report#12 queue"
    assert permit.permits == b":1:lock:report queue" == made.of("report").queue
    assert made.of_question([permit], 12)[2] == permit.permits
    assert made.of_question([permit], None)[2] == permit.queue


def test_names_are_found_in_the_index_and_nothing_else_is() -> None:
    for made in (keys(), keys_of_tenants()):
        for name in ("video:1", "é#1", " queued a b"):
            found = made.name_of(made.of(name).member)
            assert found == name
            assert made.of(name).key == made.of(found or "").key
        for member in (b"", b"\xff", b"two words", b"x" * 500, b"x\n"):
            assert made.name_of(member) is None


def test_keys_are_made_once_and_leave_the_process_if_they_depend_on_the_thread() -> None:
    for made in (keys(), keys_of_tenants()):
        lock = made.of("report#1")
        assert made.of(lock) is lock
    said = LockKeys("video:1", "default", b"somebody's", of_all=False)
    assert keys().of(said).key == keys().of("video:1").key
    assert keys_of_tenants().of(said).key == b"somebody's"
    plain, of_tenant = keys().of("report#1"), keys_of_tenants().of("report#1")
    assert type(pickle.loads(pickle.dumps(plain))) is str
    there = pickle.loads(pickle.dumps(of_tenant))
    assert (there, there.key, there.permits) == (of_tenant, of_tenant.key, of_tenant.permits)
    assert (kept_key(plain), kept_key(there)) == (None, "public:site:1:lock:report#1")


def test_permits_have_one_queue_whatever_the_function_for_keys_makes() -> None:
    made = Keys(lambda key: f"digest-{len(key)}", "lock", "default", prepends=False)
    first, second = made.of("report#1"), made.of("report#2")
    of_a_handle = made.of(LockKeys("report#1", "default", first.key, of_all=False))
    assert first.permits == second.permits == of_a_handle.permits == made.of("report").queue
    # That of its tenant, wherever the tenant is in the key.
    for key_of in ("{tenant}:{key}", "{key}:{tenant}"):

        def key_of_tenant(key: str, key_of: str = key_of) -> str:
            return key_of.format(tenant=current(), key=key)

        made = Keys(key_of_tenant, "lock", "default", prepends=False)
        with tenant("blue"):
            permit, queue = made.of("report#1"), made.of("report").queue
        for name in (permit, LockKeys("report#1", "default", permit.key, of_all=False)):
            assert made.of(name).permits == queue


def test_names_are_plain_for_other_code(use_redis: UseRedis) -> None:
    """PyYAML, for one, takes no subclass of str."""
    use_redis()
    lease = locks.acquire("report", ttl=LONG)
    assert lease is not None
    assert locks.acquire("report") is None
    (event,), (info,), found = locks.history("report"), locks.list(), locks.get("report")
    assert found is not None
    assert {type(each.name) for each in (lease, info, found, event)} == {str}
    lease.release()
