"""What is fuzzed keeps its promises, and a target notices where they are broken."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_tasklock.admin.seen import SeenLease
from django_tasklock.celery.debounce import Burst
from django_tasklock.celery.runnote import RunNote
from tests import needs
from tests.fuzz import seeds, targets
from tests.fuzz.__main__ import ROOT
from tests.fuzz.stores import CACHES, TASKLOCK
from tests.fuzz.targets import TARGETS, Target

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text()
    | st.sampled_from(["video:1", "starts", "pid", "token", "at", "kind", "refused", "name"]),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.sampled_from(["starts", "pid", "host", "token", "at", "ttl", "kind", "name"])
            | st.text(),
            inner,
            max_size=5,
        )
    ),
    max_leaves=8,
)


@pytest.fixture(autouse=True, scope="module")
def without_servers() -> Iterator[None]:
    with override_settings(CACHES=CACHES, TASKLOCK=TASKLOCK):
        yield


@pytest.fixture(params=sorted(TARGETS))
def target(request: pytest.FixtureRequest) -> Target:
    return TARGETS[request.param]


def near(name: str) -> st.SearchStrategy[bytes]:
    """Inputs of a target with a part replaced, and parts of two together."""
    some = st.sampled_from([*seeds.SEEDS[name], b""])
    parts = st.sampled_from([*seeds.DICTIONARY.get(name, ()), b""]) | st.binary(max_size=8)

    def mixed(one: bytes, other: bytes, part: bytes, at: int, to: int) -> bytes:
        return one[:at] + part + other[to:]

    return st.builds(mixed, some, some, parts, st.integers(0, 400), st.integers(0, 400))


@pytest.mark.django_db
@pytest.mark.parametrize("name", TARGETS)
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=150)
@given(data=st.data())
def test_any_bytes(name: str, data: st.DataObject) -> None:
    anything = st.binary() | JSON.map(lambda value: json.dumps(value).encode()) | near(name)
    TARGETS[name](data.draw(anything))


@pytest.mark.django_db
def test_what_each_begins_with(target: Target) -> None:
    for content in seeds.SEEDS[target.__name__]:
        target(content)


BROKEN: list[tuple[Target, Any, str, Callable[..., Any]]] = [
    (targets.event, targets, "event_of", lambda text, *_: json.loads(text)),
    (targets.notes, RunNote, "read", lambda text: RunNote(json.loads(text)["starts"])),
    (targets.notes, Burst, "read", lambda text: Burst(*json.loads(text))),
    (targets.box, SeenLease, "_from_parts", lambda parts: SeenLease(*parts)),
    (targets.command, targets, "words_of", lambda data: [data.decode("ascii")]),
]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("target", "of", "name", "broken"), BROKEN, ids=lambda part: getattr(part, "__name__", "")
)
def test_a_reader_that_trusts_what_it_reads_is_noticed(
    target: Target, of: Any, name: str, broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of, name, broken)
    with pytest.raises(Exception):  # noqa: B017 - whatever the broken reader runs into
        deque(map(target, [*seeds.SEEDS[target.__name__], b"\xff", b"[1]", b"{}", b"7"]))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_atheris_finds_nothing_in_a_moment() -> None:
    """``make fuzz`` looks for longer, at all of them."""
    needs.package("atheris")
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "record", "command", "--seconds", "3"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 targets, 0 with a find" in done.stdout
