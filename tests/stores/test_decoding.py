"""How a cache's records are decoded, whatever its serializer is."""

from __future__ import annotations

import json
import pickle
from functools import partial
from typing import Any

import pytest

from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores.record import new_record, record_of
from django_tasklock.stores.redis import decoding

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


class Loud:
    """Unpickling it raises `Ran`."""

    def __reduce__(self) -> Any:
        return _run, ()


class Ran(Exception):
    pass


def _run() -> None:
    raise Ran


def never(_value: bytes) -> Any:
    raise AssertionError("the cache's own decoder would run code")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_records_are_decoded_without_running_code(protocol: int) -> None:
    """Given a cache that pickles, its records are read, and what is no plain value is refused."""
    encode = partial(pickle.dumps, protocol=protocol)
    decode = decoding.decoder(encode, never)
    record = new_record(new_token(), owner_record("videos.tasks.process", "a-task-id"))
    assert record_of(decode(encode(record))) is not None
    assert decode(encode(record)) == record
    with pytest.raises(Exception) as refused:
        decode(encode({"token": Loud()}))
    assert not isinstance(refused.value, Ran | AssertionError)


def test_another_serializer_is_recognised() -> None:
    assert decoding.decoder(lambda value: json.dumps(value).encode(), never)(b'{"a": 1}') == {
        "a": 1
    }


def test_a_store_is_made_without_the_regular_expression() -> None:
    """It is made when the first value is read: before that, a process has met no other holder."""
    decoding._flat.cache_clear()
    decode = decoding.decoder(pickle.dumps, never)
    assert decoding._flat.cache_info().currsize == 0
    assert decode(pickle.dumps({"a": 1, "b": 2})) == {"a": 1, "b": 2}
    assert decoding._flat.cache_info().currsize == 1
