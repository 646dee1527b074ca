"""The arguments of a message, as a run that starts over finds them."""

from __future__ import annotations

from typing import Any

from django_tasklock.celery.taking import as_it_is


def test_what_the_body_changes_is_not_changed_in_them() -> None:
    given: tuple[Any, ...] = ({"parts": [1, {"two": (2, [3])}]}, "text", None)
    kept = as_it_is(given)
    given[0]["parts"][1]["two"][1].append(4)
    del given[0]["parts"][0]
    assert kept == ({"parts": [1, {"two": (2, [3])}]}, "text", None)


def test_what_json_does_not_have_is_the_same_object() -> None:
    given = [object(), {1, 2}, bytearray(b"bytes")]
    assert all(kept is one for kept, one in zip(as_it_is(given), given, strict=True))


def test_a_list_may_be_in_itself() -> None:
    given: list[Any] = []
    given.append(given)
    assert as_it_is(given) is given
