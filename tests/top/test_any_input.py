"""Whatever is passed: a call takes it, or says what is wrong with it. Nothing else is raised."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from math import isfinite
from typing import Any

from django.test.utils import override_settings
from hypothesis import example, given
from hypothesis import strategies as st

from django_tasklock._engine.names import NameTemplate
from django_tasklock._values.arguments import (
    LONGEST_NAME_CHARACTERS,
    LONGEST_TTL_SECONDS,
    SHORTEST_TTL_SECONDS,
    checked_name,
    checked_ttl,
    checked_wait,
)
from django_tasklock.conf import configured_stores, task_url
from django_tasklock.exceptions import InvalidLockConfig

PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
    | st.complex_numbers() | st.decimals() | st.fractions() | st.uuids() | st.datetimes()
)  # fmt: skip
ANYTHING = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=9) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -(10**400), 1e-3, 2**63])
KEYS = st.sampled_from(["BACKEND", "CACHE", "KEY_PREFIX", "TTL", "OPTIONS"])
TEMPLATES = st.text(st.sampled_from("{}[].:!rs_videohow %\n\u00e9")) | st.text()


def job(video: Any = None, how: Any = "hls") -> None: ...


@given(ANYTHING | st.text(max_size=250))
def test_name(name: Any) -> None:
    try:
        taken = checked_name(name)
    except (TypeError, ValueError):
        return
    assert taken is name
    assert 0 < len(taken) <= LONGEST_NAME_CHARACTERS
    assert taken.isprintable()
    assert not set(taken) & set(" \n\t\x00\u00a0\u2028")


@given(ANYTHING | NUMBERS)
@example(True)
@example(float("nan"))
def test_ttl(ttl: Any) -> None:
    try:
        taken = checked_ttl(ttl)
    except (TypeError, ValueError):
        return
    assert not isinstance(ttl, bool)
    assert SHORTEST_TTL_SECONDS <= taken <= LONGEST_TTL_SECONDS
    assert taken == ttl


@given(ANYTHING | NUMBERS)
@example(False)
@example(float("nan"))
@example(float("inf"))
def test_wait(wait: Any) -> None:
    try:
        taken = checked_wait(wait)
    except (TypeError, ValueError):
        return
    assert not isinstance(wait, bool)
    if taken is None:
        assert wait is None or wait == float("inf")
    else:
        assert taken >= 0
        assert isfinite(taken)


@given(TEMPLATES, ANYTHING, ANYTHING)
@example("{video.__class__}", 1, 1)
@example("v:{video[__class__]}", 1, 1)
@example("v:{video:{how.__class__}}", 1, 1)
@example("v:{video!x}", 1, 1)
def test_template(text: str, video: Any, how: Any) -> None:
    try:
        template = NameTemplate(text, inspect.signature(job))
        name = template.fill((video,), {"how": how})
    except (TypeError, ValueError):
        return
    assert checked_name(name) == name
    assert "<class" not in name
    assert "<built-in" not in name


@given(
    ANYTHING
    | st.dictionaries(st.text(max_size=9), ANYTHING)
    | st.dictionaries(
        st.text(max_size=9) | st.none(),
        st.dictionaries(KEYS, ANYTHING | NUMBERS | st.text(max_size=5), max_size=3),
        max_size=3,
    )
)
def test_setting(configured: Any) -> None:
    with override_settings(TASKLOCK=configured):
        try:
            found = configured_stores()
        except InvalidLockConfig:
            return
    assert found.keys() == (configured.keys() if configured is not None else {"default"})
    for store in found.values():
        assert checked_ttl(store.ttl) == store.ttl
        assert isinstance(store.cache, str)
        assert isinstance(store.key_prefix, str)
        assert isinstance(store.options, Mapping)


@given(ANYTHING | st.text().map("https://flower/{{task_id}}/{}".format), st.text())
@example("https://[::1/{task_id}", "a")
def test_address_of_a_task(template: Any, task_id: str) -> None:
    with override_settings(TASKLOCK_TASK_URL=template):
        try:
            address = task_url(task_id)
        except InvalidLockConfig:
            return
    assert (address is None) == (template is None)
    assert address is None or address.startswith(("http://", "https://"))
