"""What a template is filled with where that is not a plain scalar."""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from django.utils.functional import SimpleLazyObject
from hypothesis import assume, given
from hypothesis import strategies as st
from kombu.utils import json as kombu_json

from django_tasklock._engine.names import NameTemplate, digest_name
from tests.app.models import Job
from tests.engine.test_names import ARGUMENTS, KEYS, Colour, Number


def work(job: Any, how: Any = "hls") -> None: ...


def filled(text: str, *args: Any, function: Callable[..., Any] = work) -> str:
    return NameTemplate(text, inspect.signature(function)).fill(args, {})


@dataclass
class Parts:
    number: int
    words: list[str]


NOTHING = object()
CIRCULAR: list[Any] = []
CIRCULAR.append(CIRCULAR)


@given(ARGUMENTS)
def test_name_is_the_same_after_the_way_through_a_message(value: Any) -> None:
    try:
        name = filled("job:{job}", value)
    except ValueError:  # A text that is too long.
        assume(False)
    assert filled("job:{job}", kombu_json.loads(kombu_json.dumps(value))) == name


@given(st.dictionaries(KEYS, ARGUMENTS, min_size=2, max_size=4), st.randoms())
def test_order_of_keys_makes_no_difference(payload: dict[str, Any], by: random.Random) -> None:
    items = list(payload.items())
    by.shuffle(items)
    assert filled("job:{job}", dict(items)) == filled("job:{job}", payload)
    assert filled("job:{job}", [dict(items)]) == filled("job:{job}", [payload])


def test_different_parts_make_different_names() -> None:
    values: list[Any] = [{"a": 1}, {"a": "1"}, {"a": True}, {"a": 1.0}, {"a": None}, {}, [], [1]]
    assert len({filled("{job}", value) for value in values}) == len(values)


def test_scalars_are_told_apart_by_their_text() -> None:
    texts = [filled("{job}", value) for value in (1, "1", 1.0, True, None)]
    assert texts == ["1", "1", "1.0", "True", "None"]


def test_members_of_an_enum_stand_for_their_values() -> None:
    """As in a message. And ``format`` of one differs between versions of Python."""
    for fields in ("{job}:{how}", "{job}:{how:>5}"):
        assert filled(fields, Colour.RED, Colour.RED) == filled(fields, "red", "red")
        assert filled(fields, Number.SEVEN, Number.SEVEN) == filled(fields, 7, 7)
    assert filled("{job.name}:{how!s}", Colour.RED, 1) == "RED:1"


def test_row_is_its_label_and_key() -> None:
    """Its text is what it is called today."""
    before, after = Job(pk=7, status="new"), Job(pk=7, status="done")
    assert filled("{job}", before) == filled("{job}", after) == "app.Job.7"
    assert filled("{job}", SimpleLazyObject(lambda: before)) == "app.Job.7"
    assert filled("{job}", [before]) == filled("{job}", [after])
    assert digest_name("x", {"job": before}) == digest_name("x", {"job": after})
    with pytest.raises(TypeError, match=r"app\.Job has no primary key before it is saved"):
        filled("{job}", Job())


@pytest.mark.parametrize(
    "value",
    [{"b", "a"}, {1, "a"}, [], (1, 2), {"a": 1}, Parts(1, ["x"]), MappingProxyType({"a": 1})],
)
def test_value_with_parts_is_a_digest(value: Any) -> None:
    name = filled("{job}", value)
    assert re.fullmatch("%x[0-9a-f]{32}", name)
    assert filled("{job}", name) != name, "a text could be taken for it"


def test_dataclass_is_its_fields() -> None:
    assert filled("{job}", Parts(1, ["x"])) == filled("{job}", Parts(1, ["x"]))
    assert filled("{job}", Parts(1, ["x"])) != filled("{job}", Parts(1, ["y"]))


def test_class_may_say_its_own_text() -> None:
    assert filled("{job}:{how}", Path("/a b/c"), ip_address("10.0.0.1")) == "/a%20b/c:10.0.0.1"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{job}", object()),
        ("{job}", [object()]),
        ("{job}", lambda: None),
        ("{job}", Job),
        ("{job}", {"a": object()}),
        ("{job}", SimpleNamespace(of=object())),
        ("{job}", Exception(object())),
        ("{job!r}", object()),
        ("{job!s}", [object()]),
        ("{job:>5}", object()),
        ("{job:>5}", {"a": 1}),
        ("{job}", CIRCULAR),
    ],
)
def test_value_without_a_text_of_its_own_is_an_error(text: str, value: Any) -> None:
    """Two processes would take two locks."""
    with pytest.raises(TypeError, match="cannot be filled"):
        filled(text, value)


def test_an_attribute_or_a_conversion_is_the_way_out() -> None:
    value = SimpleNamespace(pk=7, of={"a": {"b": object()}})
    assert filled("{job.pk}", value) == "7"
    assert filled("{job!r}", range(3)) == "range(0,%203)"


def test_text_that_speaks_of_an_address_is_a_text() -> None:
    assert filled("{job!r}", "x at 0x1f") == "'x%20at%200x1f'"


def test_default_without_a_text_is_refused_when_it_is_used() -> None:
    def of(job: Any, how: Any = NOTHING) -> None: ...

    assert filled("{job}:{how}", 1, 2, function=of) == "1:2"
    with pytest.raises(TypeError, match="object is not a plain value"):
        filled("{job}:{how}", 1, function=of)
