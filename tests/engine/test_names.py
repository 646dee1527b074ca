"""A lock's name from the arguments of a call: one name for one job, however it is sent."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timezone
from decimal import Decimal
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import pytest
from django.utils.functional import lazystr
from hypothesis import assume, example, given
from hypothesis import strategies as st
from kombu.utils import json as kombu_json

from django_tasklock._engine.binding import Binder, bound_arguments
from django_tasklock._engine.names import (
    NameTemplate,
    digest_name,
    quoted,
)
from django_tasklock._values.arguments import LONGEST_NAME_CHARACTERS, checked_name
from tests.agent import run_python

TRICKY = st.text(st.sampled_from(":% a3AF5é锁\n\x00\u202e\ud800/{}")) | st.text()


def template(text: str, function: Callable[..., Any]) -> NameTemplate:
    return NameTemplate(text, inspect.signature(function))


class TestQuoting:
    @given(TRICKY)
    @example("100%25")
    def test_value_can_be_read_back(self, value: str) -> None:
        """So no two values are quoted to the same text."""
        assert unquote(quoted(value), errors="surrogatepass") == value

    @given(TRICKY)
    def test_quoted_value_holds_nothing_that_separates(self, value: str) -> None:
        text = quoted(value)
        assert ":" not in text
        assert text == "" or checked_name("x" + text[: LONGEST_NAME_CHARACTERS - 1])

    @given(st.lists(TRICKY, min_size=2, max_size=4), st.lists(TRICKY, min_size=2, max_size=4))
    @example(["a:b", "c"], ["a", "b:c"])
    @example(["a%3Ab", ""], ["a:b", ""])
    def test_parts_never_meet(self, ours: list[str], theirs: list[str]) -> None:
        assume(ours != theirs)
        assert ":".join(map(quoted, ours)) != ":".join(map(quoted, theirs))

    def test_ordinary_values_are_left_as_they_are(self) -> None:
        for value in ("123", "2026-01-31", "a_b-c.d/e", "é", "{x}", "", "*"):
            assert quoted(value) == value


def job(video: Any, how: str = "hls", *, copies: int = 1, **extra: Any) -> None: ...


def plain(video: Any, how: str = "hls", copies: int = 1) -> None: ...


def nothing() -> None: ...


def anything(video: Any, *more: Any, **extra: Any) -> None: ...


def by_place(video: Any, /, how: str = "hls") -> None: ...


class TestBinder:
    @given(
        function=st.sampled_from([plain, nothing, anything, by_place, job]),
        args=st.lists(st.integers(), max_size=4),
        kwargs=st.dictionaries(
            st.sampled_from(["video", "how", "copies", "another"]), st.integers(), max_size=4
        ),
    )
    def test_it_binds_as_the_call_itself(
        self, function: Callable[..., Any], args: list[int], kwargs: dict[str, int]
    ) -> None:
        """The same arguments in the same order, or the same error."""
        signature = inspect.signature(function)
        try:
            expected: object = list(bound_arguments(signature, args, kwargs).items())
        except TypeError as error:
            expected = str(error)
        try:
            found: object = list(Binder(signature)(args, kwargs).items())
        except TypeError as error:
            found = str(error)
        assert found == expected


class TestTemplate:
    @given(
        video=st.integers() | st.text(st.characters(codec="ascii"), max_size=20),
        how=st.none() | st.text(st.characters(codec="ascii"), max_size=20),
        copies=st.none() | st.integers(),
        by_name=st.integers(0, 2),
    )
    def test_name_does_not_tell_how_the_arguments_were_passed(
        self, video: Any, how: str | None, copies: int | None, by_name: int
    ) -> None:
        values: dict[str, Any] = {"video": video}
        if how is not None:
            values["how"] = how
        args = list(values.values())[: len(values) - by_name] if by_name < len(values) else []
        kwargs = dict(list(values.items())[len(args) :])
        if copies is not None:
            kwargs["copies"] = copies
        name = template("v:{video}:{how}:{copies}", job).fill(args, kwargs)
        expected = (str(video), "hls" if how is None else how, str(1 if copies is None else copies))
        assert name == "v:" + ":".join(map(quoted, expected))

    def test_values_are_quoted_and_the_template_is_not(self) -> None:
        assert template("v:{video}:{how}", job).fill(("a:b", "c d"), {}) == "v:a%3Ab:c%20d"

    @dataclass
    class Video:
        pk: int
        tags: tuple[str, ...] = ("new", "long")

    def test_attributes_items_and_formats(self) -> None:
        fill = template("{video.pk:05d}:{video.tags[1]}:{how!r}", job).fill
        assert fill((self.Video(7), "x"), {}) == "00007:long:'x'"
        day = template("report:{video:%Y-%m-%d}", job).fill
        assert day((date(2026, 1, 31),), {}) == "report:2026-01-31"

    def test_attribute_of_what_became_a_dict_on_its_way_is_its_item(self) -> None:
        fill = template("{video.pk}:{video.owner.name}", job).fill
        assert fill(({"pk": 7, "owner": {"name": "ann"}},), {}) == "7:ann"

    def test_further_keywords_may_be_named(self) -> None:
        fill = template("{colour}", job).fill
        assert fill((1,), {"colour": "red"}) == "red"
        with pytest.raises(ValueError, match=r"cannot be filled.*colour"):
            fill((1,), {})

    def test_further_keywords_may_be_called_like_other_parameters(self) -> None:
        """Python allows that for those that no keyword can reach."""

        def body(video: int, /, *args: int, **kwargs: int) -> None: ...

        bind = Binder(inspect.signature(body))
        assert bind((7, 8), {"video": 1, "args": 2, "kwargs": 3}) == {
            "video": 7, "args": (8,), "kwargs": 3, "**video": 1, "**args": 2,
        }  # fmt: skip
        names = {digest_name("task", bind((7,), {"video": video})) for video in (1, 2, 7)}
        assert len(names) == 3

    def test_braces_may_be_meant(self) -> None:
        assert template("{{slot}}", job).fill((1,), {}) == "{slot}"
        assert template("{{{video}}}", job).fill((1,), {}) == "{1}"

    def test_template_without_fields_needs_no_arguments(self) -> None:
        assert template("nightly", job).fill((), {}) == "nightly"

    def simple(self, video: int) -> None: ...

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("v:{vidoe}", "'vidoe'.*no such parameter.*self, video"),
            ("v:{}", "no name"),
            ("v:{0}", "no name"),
            ("v:{video", "expected '}'"),
            ("v:{video.__class__}", "special attribute: {video.__class__}"),
            ("v:{video[0].__init__.__globals__}", "special attribute"),
            ("", "empty"),
            ("a b:{video}", "spaces"),
            ("a\n{video}", "printable"),
            ("x" * 201, "200"),
            ("x" * 201 + "{video}", "200"),
        ],
    )
    def test_template_that_cannot_be_meant_is_an_error_at_once(self, text: str, says: str) -> None:
        with pytest.raises(ValueError, match=says):
            template(text, TestTemplate.simple)

    @pytest.mark.parametrize("text", [None, 7, b"v"])
    def test_template_is_a_str(self, text: Any) -> None:
        with pytest.raises(TypeError):
            template(text, job)

    @pytest.mark.parametrize("value", ["", "x" * 201, ":" * 100])
    def test_value_that_makes_no_name_is_an_error(self, value: str) -> None:
        with pytest.raises(ValueError, match="name"):
            template("{video}", job).fill((value,), {})


class Colour(str, enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    SEVEN = 7


class Point:
    """Knows its own way through a message."""

    def __json__(self) -> list[int]:
        return [3, 4]


NATIVE = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"))
)
PLAIN = (
    NATIVE
    | st.binary()
    | st.dates()
    | st.datetimes()
    | st.datetimes(timezones=st.timezones() | st.just(timezone.utc))
    | st.times()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.sampled_from([*Colour, *Number, lazystr("lazy"), Point()])
)
KEYS = st.text(st.characters(codec="utf-8"), max_size=5)
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


class TestDigest:
    @given(st.dictionaries(KEYS, ARGUMENTS, max_size=4))
    @example({"a": {9: "nine", 10: "ten"}})
    @example({"a": {None: 1}})
    @example({"a": {True: 1, False: 2}})
    def test_it_is_the_same_after_the_way_through_a_message(self, values: dict[str, Any]) -> None:
        sent = kombu_json.loads(kombu_json.dumps(values))
        name = digest_name("videos.process", values)
        assert digest_name("videos.process", sent) == name
        assert checked_name(name) == name
        assert name.startswith("videos.process:")

    @given(st.lists(NATIVE, max_size=3), st.lists(NATIVE, max_size=3))
    @example([1], ["1"])
    @example([1], [True])
    @example([None], ["null"])
    @example([["a", "b"]], [["a"], "b"])
    def test_different_arguments_have_different_names(
        self, ours: list[Any], theirs: list[Any]
    ) -> None:
        texts = [kombu_json.dumps(each) for each in (ours, theirs)]
        assume(texts[0] != texts[1])
        assert digest_name("x", {"args": ours}) != digest_name("x", {"args": theirs})

    def test_it_does_not_tell_how_the_arguments_were_passed(self) -> None:
        signature = inspect.signature(job)
        names = {
            digest_name("job", bound_arguments(signature, args, kwargs))
            for args, kwargs in (
                ((7,), {}),
                ((7, "hls"), {}),
                ((), {"how": "hls", "video": 7}),
                ((7,), {"copies": 1}),
            )
        }
        assert len(names) == 1
        assert digest_name("job", bound_arguments(signature, (7,), {"copies": 2})) not in names

    def test_it_is_the_same_in_every_process(self) -> None:
        """Whatever the order in which a process keeps a set."""
        values = (
            "{'a': {'x', 'y', 'z'}, 'b': frozenset('uvw'), 'c': {'k': 1, 'j': 2}, "
            "'d': {frozenset('xy'), frozenset('yz'), frozenset('zx')}, 'e': {'x', 1, None}}"
        )
        program = (
            "from django_tasklock._engine.names import digest_name\n"
            f"print(digest_name('x', {values}))"
        )
        names = {run_python(program, PYTHONHASHSEED=str(seed)) for seed in (1, 2, 3)}
        assert len(names) == 1

    def test_long_task_name_is_cut_and_the_digest_kept(self) -> None:
        names = {digest_name("x" * 500, {"a": number}) for number in range(2)}
        assert len(names) == 2
        assert all(len(name) == LONGEST_NAME_CHARACTERS for name in names)

    @pytest.mark.parametrize(
        "value",
        [object(), lambda: None, {("a", "b"): 1}, {object()}],
        ids=lambda v: type(v).__name__,
    )
    def test_value_without_a_stable_form_is_an_error_that_helps(self, value: Any) -> None:
        with pytest.raises(TypeError, match="give it a lock_name"):
            digest_name("videos.process", {"value": value})

    def test_values_that_python_knows_are_named_by_their_text(self) -> None:
        for value, text in (
            (Decimal("1.50"), "1.50"),
            (UUID(int=7), str(UUID(int=7))),
            (date(2026, 1, 31), "2026-01-31"),
        ):
            assert digest_name("x", {"a": value}) == digest_name("x", {"a": text})
