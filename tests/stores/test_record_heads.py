"""Records that are read quickly are what the strict reader makes of them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_tasklock._values.owner_record import operator_record, owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores.record import Record, new_record, record_of
from django_tasklock.stores.redis.decoding import flat_decoder
from django_tasklock.stores.redis.record_heads import END_BYTES, TASK_ID, RecordHeads

decode = flat_decoder()
texts = st.text(max_size=12) | st.sampled_from(
    ["id-1", "id-12", "\u014c\x07task_id\u0094\u014c", "ü"]
)
"""task ids, also such as hold the bytes with which a key begins"""
extras = st.dictionaries(
    st.sampled_from(
        ["task_id", "token", "at", "ttl", "renew", "held_by", "reason", "mark", "pid", "x"]
    ),
    st.none() | st.booleans() | st.integers(-1, 300) | st.floats() | texts,
    max_size=3,
)


class Strict:
    """The strict reader, and what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    def __call__(self, value: bytes) -> Record | None:
        self.asked.append(value)
        return strict(value)


def strict(value: bytes) -> Record | None:
    try:
        return record_of(decode(value))
    except Exception:
        return None


def heads() -> tuple[RecordHeads, Strict]:
    read = Strict()
    return RecordHeads(read), read


def value_of(owner: dict[str, Any], protocol: int = 4) -> bytes:
    return pickle.dumps(new_record(new_token(), owner), protocol)


def framed(body: bytes) -> bytes:
    return b"\x80\x04\x95" + len(body).to_bytes(8, "little") + body


def test_only_the_first_record_of_a_task_is_read_strictly() -> None:
    quick, read = heads()
    values = [
        value_of(owner_record(task, f"id-{number}" if task else None), protocol)
        for number in range(30)
        for task in ("a.b", "a.c", None)
        for protocol in (4, 5)
    ]
    assert [quick.record(value) for value in values] == [strict(value) for value in values]
    assert len(read.asked) == 3
    assert None not in map(strict, values)


@given(st.data())
def test_whatever_was_read_before_the_answer_is_that_of_the_strict_reader(data: Any) -> None:
    quick, _ = heads()
    owners = st.one_of(
        st.builds(owner_record, st.none() | texts, st.none() | texts),
        st.just(operator_record("al", "why")),
    )
    seen: list[bytes] = []
    for _ in range(data.draw(st.integers(2, 6))):
        record = data.draw(owners) | data.draw(extras)
        protocol = data.draw(st.sampled_from([2, 4, 4, 4, 5]))
        if data.draw(st.booleans()):
            record = new_record(new_token(), record)
        value = pickle.dumps(record, protocol)
        if seen and data.draw(st.booleans()):
            # Pieces of two records
            other = data.draw(st.sampled_from(seen))
            cut = data.draw(st.integers(0, min(len(value), len(other))))
            value = other[:cut] + value[cut:]
            if data.draw(st.booleans()):
                value = framed(value[11:])
        elif data.draw(st.integers(0, 3)) == 0:
            at = data.draw(st.integers(0, len(value) - 1))
            value = value[:at] + bytes([data.draw(st.integers(0, 255))]) + value[at + 1 :]
        seen.append(value)
        for each in (value, value[:-END_BYTES] + seen[0][-END_BYTES:]):
            assert repr(quick.record(each)) == repr(strict(each)), each


def test_an_end_that_begins_within_a_field_is_no_end() -> None:
    end = value_of({})[-END_BYTES:]
    task = TASK_ID + b"\x01x\x94"
    for odd in (
        b"\x8c\x01x\x94\x8c\x2f" + end,  # in a text
        b"\x8c\x01x\x94\x8c" + bytes([len(task) + 47]) + task + end,
        b"\x8c\x01x\x94G" + end,  # in a number
        b"\x8c\x01x\x94\x8a\x08" + end,
        b"\x8c\x01x\x94G" + task + end,
        b"\x8c\x01x\x94" + end,  # a value, and no key
        b"\x8c\x01x\x94" + task + end,
        b"\x8c\x01x\x94h" + end,
    ):
        quick, _ = heads()
        for _ in range(2):
            value = framed(b"}\x94(" + odd)
            assert quick.record(value) is strict(value) is None


@pytest.mark.parametrize("key", ["\u014c\x07task_id", "\u014c\x05token"], ids=["task_id", "token"])
def test_a_strangers_key_that_ends_like_one_of_ours(key: str) -> None:
    quick, _ = heads()
    for text in ("A" * 22, "B" * 22):
        last = {} if key.endswith("token") else {"token": new_token()}
        record = {"token": "C" * 22, key: text, "at": 1.5} | last
        del record["at"]
        value = pickle.dumps(record | {"at": 1.5}, 4)
        assert strict(value) is not None
        assert quick.record(value) == strict(value)


def test_an_operator_has_no_task() -> None:
    quick, _ = heads()
    operator = value_of(operator_record("al", "why"))
    assert quick.record(operator) == strict(operator) is not None
    with_task = framed(operator[11:-END_BYTES] + TASK_ID + b"\x01x\x94" + operator[-END_BYTES:])
    assert quick.record(with_task) is strict(with_task) is None
    assert quick.record(operator) == strict(operator)


def test_a_time_that_no_clock_shows_is_refused_again() -> None:
    quick, _ = heads()
    value = value_of(owner_record("a.b", "id"))
    assert quick.record(value) is not None
    for odd in (float("nan"), -1.0, 1e300):
        wrong = pickle.dumps(new_record(new_token(), owner_record("a.b", "id"), odd), 4)
        assert quick.record(wrong) is strict(wrong) is None


def test_a_frame_of_another_length_is_not_read_quickly() -> None:
    quick, read = heads()
    value = value_of(owner_record("a.b", "id"))
    quick.record(value)
    longer = value[:3] + (2**40).to_bytes(8, "little") + value[11:]
    assert quick.record(longer) == strict(longer)
    assert read.asked == [value, longer]


def test_a_task_id_of_another_length_than_it_says_is_not_read_quickly() -> None:
    quick, _ = heads()
    value = value_of(owner_record("a.b", "id"))
    assert quick.record(value) is not None
    at = value.index(TASK_ID) + len(TASK_ID)
    for size in (0, 1, 3, 4, 200):
        wrong = value[:at] + bytes([size]) + value[at + 1 :]
        assert quick.record(wrong) is strict(wrong) is None
