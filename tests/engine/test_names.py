"""A lock's name from the arguments of a call: one name for one job, however it is sent."""

from __future__ import annotations

import enum
import inspect
import re
from dataclasses import make_dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from django.utils.functional import SimpleLazyObject, lazystr
from hypothesis import assume, example, given
from hypothesis import strategies as st
from kombu.utils import json as kombu_json

from django_tasklock import InvalidLockConfig, make_name
from django_tasklock._engine.names import NameTemplate, bound_arguments, digest_name
from django_tasklock.celery import by
from tests.agent import run_python
from tests.app.models import Job


class Colour(str, enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    SEVEN = 7


class Point:
    """Knows its own way through a message."""

    def __json__(self) -> list[int]:
        return [3, 4]


def job(video: Any, how: Any = "hls", *, copies: int = 1, **extra: Any) -> None: ...


def filled(text: str, *args: Any, **kwargs: Any) -> str:
    return NameTemplate(text, inspect.signature(job)).fill(args, kwargs)


TRICKY = st.text(st.sampled_from(":% a3AF5é锁\n\x00\u202e\ud800/{}")) | st.text()
LONG = st.text(st.sampled_from("ab:"), min_size=150, max_size=400)
WRITTEN = st.characters(codec="utf-8")
NATIVE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(WRITTEN)
PLAIN = (
    NATIVE | st.binary() | st.dates() | st.times() | st.decimals(allow_nan=False) | st.uuids()
    | st.datetimes() | st.datetimes(timezones=st.timezones() | st.just(timezone.utc))
    | st.sampled_from([*Colour, *Number, lazystr("lazy"), Point()])
)  # fmt: skip
KEYS = st.text(WRITTEN, max_size=5)
ARGUMENTS = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(st.integers(-20, 200), inner, max_size=4)
    ),
    max_leaves=8,
)


NAMES: list[tuple[Any, str]] = [
    (7, "7"), (Number.SEVEN, "7"), (Colour.RED, "red"), (None, "None"), (True, "True"),
    (1e300, "1e+300"), (b"\x00\xff", r"b'\x00\xff'"), (lazystr("lazy: é"), "lazy%3A%20é"),
    ("a b:%é\u202e", "a%20b%3A%25é%E2%80%AE"), (date(2026, 1, 31), "2026-01-31"),
    (datetime(2026, 1, 31, tzinfo=timezone.utc), "2026-01-31%2000%3A00%3A00+00%3A00"),
    (UUID(int=1), "00000000-0000-0000-0000-000000000001"), (Decimal("1.50"), "1.50"),
    (Path("/a b/c"), "/a%20b/c"), (Job(pk=7), "app.Job.7"),
    (timedelta(1), "1%20day,%200%3A00%3A00"), (SimpleLazyObject(lambda: Job(pk=7)), "app.Job.7"),
    ({"b": {2, 3}, "a": 1}, "%xefbd0040190fb0871831e606c581f8a6"),
    ([1, "x", None, 1.5, True], "%x1d5728da54045d740b85ec0cad0883e6"),
    ({10: "ten", 9: "nine"}, "%xe1ee368033cc3ee9c8c6692643539f78"),
    ({frozenset("xy"), frozenset("yz")}, "%xbc549f63f2cbb00de2b79946f18f59be"),
    ([Job(pk=7)], "%x3a9b37a81c1c557c5b699371e8c4f038"),
    (Point(), "%x8be6d66e9099c68d8feb52ce42478d21"),
    (make_dataclass("Parts", ["number", "words"])(1, ["x"]), "%x7f8703a5f1a5c0ecf4b237ca2eaa879a"),
]  # fmt: skip
DIGESTS: list[tuple[Any, str]] = [
    (7, "906162c307d04d1b08bacae28759f8c0"), (b"\x00\xff", "4f3a670ab531854c548e478bf6247295"),
    (Decimal("1.50"), "edd6cae39763c6a257b74dd878c48c5f"),
    (Job(pk=7), "55b93bbf44e170230d05cae3906683e1"),
    ({10: "ten", 9: "nine"}, "477d40689fca8377419ec1a997f08363"),
]  # fmt: skip


def test_names_and_digests_stay_what_they_are() -> None:
    """Two versions of this package exclude each other."""
    # Given values of every kind, I expect each to have the name that it has always had
    for value, name in NAMES:
        assert make_name("x", value) == filled("x:{video}", value) == f"x:{name}"
    for value, digest in DIGESTS:
        assert digest_name("x", {"a": value}) == f"x:{digest}"
    # And a long name to be cut to 200 characters, without meeting another
    long = digest_name("x" * 500, {"a": 1})
    assert long == "x" * 167 + ":015abd7f5cc57a2dd94b7590f04ad808"
    name = make_name("report", "x" * 500)
    assert re.fullmatch("report:x{159}%x[0-9a-f]{32}", name)


def test_they_are_the_same_in_every_process() -> None:
    """Whatever the order in which a process keeps a set."""
    program = (
        "from django_tasklock import make_name\n"
        "print(make_name('x', {'x', 'y', 1, None}, {frozenset('xy'), frozenset('yz')}, 'e' * 300))"
    )
    assert len({run_python(program, PYTHONHASHSEED=str(seed)) for seed in (1, 2, 3)}) == 1


class TestForms:
    @given(*[st.lists(TRICKY | LONG, min_size=1, max_size=4)] * 2)
    @example(["a:b", "c"], ["a", "b:c"])
    @example(["a%3Ab"], ["a:b"])
    @example([""], ["", ""])
    @example(["x" * 201], ["x" * 202])
    def test_different_parts_never_meet(self, ours: list[str], theirs: list[str]) -> None:
        assume(ours != theirs)
        assert make_name(*ours) != make_name(*theirs)

    @given(*[st.lists(NATIVE | st.lists(NATIVE, max_size=2), max_size=3)] * 2)
    @example([1], ["1"])
    @example([1], [True])
    @example([None], ["null"])
    @example([["a", "b"]], [["a"], "b"])
    def test_different_values_never_meet(self, ours: list[Any], theirs: list[Any]) -> None:
        assume(kombu_json.dumps(ours) != kombu_json.dumps(theirs))
        assert digest_name("x", {"args": ours}) != digest_name("x", {"args": theirs})
        assert make_name(ours) != make_name(theirs)

    @given(st.dictionaries(KEYS, ARGUMENTS, max_size=4))
    @example({"a": {9: "nine", 10: "ten"}})
    @example({"a": {None: 1}})
    @example({"a": {True: 1, False: 2}})
    def test_they_are_the_same_after_the_way_through_a_message(self, sent: dict[str, Any]) -> None:
        read = kombu_json.loads(kombu_json.dumps(dict(reversed(sent.items()))))
        assert digest_name("videos.process", read) == digest_name("videos.process", sent)
        for value in sent:
            assert make_name(read[value]) == make_name(sent[value])

    def test_a_value_without_a_form_of_its_own_is_an_error(self) -> None:
        """Two processes would take two locks."""
        circular: list[Any] = []
        circular.append(circular)
        for value in (object(), {("a", "b"): 1}, lambda: None, Job(), circular):
            with pytest.raises(TypeError, match="cannot be filled"):
                filled("{video}", value)
            with pytest.raises(TypeError, match="give the task a lock_name"):
                digest_name("videos.process", {"value": value})
        for text, value in (("{video!r}", object()), ("{video:>5}", {"a": 1})):
            with pytest.raises(TypeError, match="cannot be filled"):
                filled(text, value)
        with pytest.raises(TypeError, match="at least one part"):
            make_name()


def test_a_name_does_not_tell_how_the_arguments_were_passed() -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((7,), {}), ((7, "hls"), {}), ((), {"how": "hls", "video": 7}), ((7,), {"copies": 1})
    ]  # fmt: skip
    signature = inspect.signature(job)
    arguments = [bound_arguments(signature, args, kwargs) for args, kwargs in calls]
    assert len({digest_name("job", each) for each in arguments}) == 1
    assert {filled("{video}:{how}", *args, **kwargs) for args, kwargs in calls} == {"7:hls"}
    other = bound_arguments(signature, (7,), {"copies": 2})
    assert digest_name("job", other) != digest_name("job", arguments[0])

    # Further keywords may be called like parameters that no keyword can reach.
    def body(video: int, /, *args: int, **kwargs: int) -> None: ...

    keywords = {"video": 1, "args": 2, "kwargs": 3}
    found = bound_arguments(inspect.signature(body), (7, 8), keywords)
    assert found == {"video": 7, "args": (8,), "kwargs": 3, "**video": 1, "**args": 2}


class TestTemplate:
    def test_attributes_items_formats_and_conversions(self) -> None:
        video: Any = SimpleNamespace(pk=7, tags=("new", "long"))
        assert filled("{video.pk:05d}:{video.tags[1]}:{how!r}", video, "x") == "00007:long:'x'"
        assert filled("report:{video:%Y-%m-%d}", date(2026, 1, 31)) == "report:2026-01-31"
        assert filled("{video!r}", range(3)) == "range(0,%203)"
        assert filled("{video:>5}:{how:>5}", Colour.RED, Number.SEVEN) == "%20%20red:%20%20%20%207"
        video = {"pk": 7, "owner": {"name": "ann"}}  # what became a dict on its way
        assert filled("{video.pk}:{video.owner.name}", video) == "7:ann"
        assert filled("{colour}", 1, colour="red") == "red"

    def test_a_value_that_lacks_what_a_field_reads_is_an_error_that_says_so(self) -> None:
        wrong: dict[str, tuple[Any, str]] = {
            "video:{video.pk}": (7, "'int' object has no attribute 'pk'"),
            "video:{video.owner.pk}": ({"pk": 7}, "there is no argument or key 'owner'"),
            "video:{colour}": (7, "there is no argument or key 'colour'"),
            "video:{video[1]}": ([7], "list index out of range"),
        }
        for text, (video, why) in wrong.items():
            mend = "pass what the template reads, or change the template"
            says = f"{text!r} cannot be filled: {why}; {mend}"
            with pytest.raises(ValueError, match=re.escape(says)):
                filled(text, video)

    def test_one_that_cannot_be_meant_is_an_error_at_once(self) -> None:
        def work(video: int, how: str) -> None: ...

        wrong = "v:{vidoe} v:{0} v:{video v:{video.__class__} v:{video:{how}}"
        for text in ("", *wrong.split()):
            with pytest.raises(ValueError, match=r"no such|must name|expected|special|in it|1 to"):
                NameTemplate(text, inspect.signature(work))


def test_by_may_choose_a_further_keyword_which_may_be_missing() -> None:
    chosen = by("colour")
    chosen.check(inspect.signature(job))
    assert chosen.name_from("task", {"colour": "red", "video": 1}) == "task:red"
    with pytest.raises(
        ValueError, match=r"by\('colour'\) cannot be filled: there is no .*'colour'"
    ):
        chosen.name_from("task", {"video": 1})
    for wrong in ((), ("extra",)):
        with pytest.raises((ValueError, InvalidLockConfig), match="names"):
            by(*wrong).check(inspect.signature(job))
