"""How a record is found in a value, whatever the cache's serializer puts around it."""

from __future__ import annotations

import json
import pickle
from functools import partial
from typing import Any

import pytest

from django_tasklock._values.owner import operator_record, owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores.records import (
    LONGEST_RECORD_BYTES,
    new_record,
    note_record,
    record_of,
    text_of_record,
)

RECORD = new_record(new_token(), owner_record("videos.процесс", 'an "id" \\'), "a-version")
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
    text = text_of_record(record)
    assert text.isascii()
    encoders: list[Any] = [str, str.encode, json.dumps, packed]
    encoders += [partial(pickle.dumps, protocol=each) for each in range(1, 6)]  # 0 is refused.
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
