"""Names made of anything: `make_name`, and `by` for tasks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from datetime import date
from typing import Any
from uuid import UUID

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from kombu.utils import json as kombu_json

from django_tasklock import InvalidLockConfig, make_name
from django_tasklock._engine.binding import bound_arguments
from django_tasklock._values.arguments import LONGEST_NAME_CHARACTERS, checked_name
from django_tasklock.celery import by
from tests.agent import run_python
from tests.app.models import Job
from tests.celery_tasks.test_task_options import made
from tests.engine.test_names import ARGUMENTS, NATIVE, TRICKY

LONG = st.text(st.sampled_from("ab:"), min_size=150, max_size=400)
PARTS = ARGUMENTS | TRICKY | LONG | st.builds(Job, pk=st.integers())
JSON = st.recursive(
    NATIVE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(st.lists(PARTS, min_size=1, max_size=4))
@example([""])
@example(["", ""])
@example(["x" * 200])
@example([":" * 300])
@example(["\x00\n \u202e"])
def test_anything_makes_a_valid_name(parts: list[Any]) -> None:
    name = make_name(*parts)
    assert checked_name(name) == name
    assert make_name(*parts) == name


@given(
    st.lists(TRICKY | LONG, min_size=1, max_size=4), st.lists(TRICKY | LONG, min_size=1, max_size=4)
)
@example(["a:b", "c"], ["a", "b:c"])
@example(["a", "b"], ["a:b"])
@example(["a%3Ab"], ["a:b"])
@example([""], ["", ""])
@example(["x" * 201], ["x" * 202])
def test_different_parts_never_meet(ours: list[str], theirs: list[str]) -> None:
    assume(ours != theirs)
    assert make_name(*ours) != make_name(*theirs)


@given(st.lists(PARTS, min_size=1, max_size=3))
@example([""])
@example(["x" * 201])
@example([[1]])
def test_no_texts_make_the_name_of_what_was_digested(parts: list[Any]) -> None:
    name = make_name(*parts)
    assume("%x" in name)
    assert make_name(*name.split(":")) != name


@given(st.lists(JSON, max_size=3), st.lists(JSON, max_size=3))
def test_different_lists_never_meet(ours: list[Any], theirs: list[Any]) -> None:
    assume(kombu_json.dumps(ours, sort_keys=True) != kombu_json.dumps(theirs, sort_keys=True))
    assert make_name(ours) != make_name(theirs)


def test_it_reads_as_it_was_made() -> None:
    assert make_name("order", 7, "a b") == "order:7:a%20b"
    zero = "00000000-0000-0000-0000-000000000000"
    assert make_name("report", date(2026, 1, 31), UUID(int=0)) == f"report:2026-01-31:{zero}"
    assert make_name("row", Job(pk=7)) == make_name("row", Job(pk=7, status="done"))
    assert make_name("row", Job(pk=7)) == "row:app.Job.7"
    assert make_name("x", 7) == make_name("x", "7")
    assert make_name("x", {"a": 1, "b": {2, 3}}) == make_name("x", {"b": {3, 2}, "a": 1})


def test_long_name_keeps_its_beginning() -> None:
    name = make_name("report", "x" * 500)
    assert len(name) == LONGEST_NAME_CHARACTERS
    assert re.fullmatch("report:x+%x[0-9a-f]{32}", name)


def test_it_is_the_same_in_every_process() -> None:
    program = (
        "from django_tasklock import make_name\n"
        "print(make_name('x', {'x', 'y', 'z'}, {frozenset('xy'), frozenset('yz')}, 'e' * 300))"
    )
    assert len({run_python(program, PYTHONHASHSEED=str(seed)) for seed in (1, 2, 3)}) == 1


def test_what_cannot_be_named_is_an_error() -> None:
    with pytest.raises(TypeError, match="at least one part"):
        make_name()
    for value in (object(), [object()], lambda: None, Job()):
        with pytest.raises(TypeError):
            make_name("x", value)


# ------------------------------------------------------------------------------ by


def work(video: Any, how: str = "hls", *, copies: int = 1, **extra: Any) -> None: ...


def namer(*names: str) -> Callable[..., str]:
    chosen, signature = by(*names), inspect.signature(work)
    chosen.check(signature)
    return lambda *args, **kwargs: chosen.name_from(
        "videos.process", bound_arguments(signature, args, kwargs)
    )


def test_by_leaves_other_arguments_out() -> None:
    name_of = namer("video", "how")
    assert name_of(7) == name_of(7, "hls", copies=3) == "videos.process:7:hls"
    assert name_of(how="dash", video=7) == "videos.process:7:dash"


def test_by_makes_a_name_of_any_argument() -> None:
    for value in ("", " ", "x" * 500, {"a": [1, None]}, date(2026, 1, 31), Job(pk=7)):
        assert checked_name(namer("video")(value)).startswith("videos.process:")


def test_by_may_name_further_keywords() -> None:
    assert namer("colour")(1, colour="red") == "videos.process:red"
    with pytest.raises(ValueError, match=r"by\('colour'\) cannot be filled: no 'colour'"):
        namer("colour")(1)
    with pytest.raises(ValueError, match=r"by\('extra'\) names 'extra': name one of"):
        namer("extra")


@pytest.mark.parametrize("names", [(), (7,), (["video"],)])
def test_by_takes_names(names: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidLockConfig, match="names of arguments"):
        by(*names)


def test_a_tasks_name_comes_before_the_arguments_it_chose() -> None:
    task = made(lock_name=by("how", "video"))
    assert task.naming.name_of((7,), {}) == "process:hls:7"
    assert task.naming.name_of((), {"video": " ", "how": "x"}) == "process:x:%20"


def test_an_argument_that_does_not_exist_is_said_when_the_task_is_defined() -> None:
    with pytest.raises(InvalidLockConfig, match=r"task process: by\('user_id', 'how'\) names .*"):
        made(lock_name=by("user_id", "how"))
