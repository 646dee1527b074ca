"""What cannot be meant is one clear error, before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from django_tasklock import InvalidLockConfig, lock, locks
from tests import needs
from tests.conftest import UseRedis
from tests.servers import NoRedis, RedisServer, own_redis
from tests.steps import Traffic, taken

NAMES: list[Any] = [
    "", "x" * 201, "a b", "a\nb", "a\x00b", "\x1b[2J", "a\u202eb", "a\u200bb", "\ud800", "a\xa0b",
    None, 7, b"video:1", {"video:1"}, [["video:1"]],
]  # fmt: skip
TTLS: list[Any] = [
    0, 0.0009, -1, math.nan, math.inf, -math.inf, 1e300, 10**400,
    "60", True, False, Decimal(60), [60], 1j,
]  # fmt: skip
WAITS: list[Any] = [-1, -0.001, math.nan, -math.inf, 10**400, "5", True, False, []]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """One that nobody else asks anything meanwhile."""
    try:
        with own_redis(needs_own=True) as server:
            yield server
    except NoRedis as error:
        needs.missing(str(error))


@pytest.fixture
def nothing_is_sent(server: RedisServer, use_redis: UseRedis) -> Iterator[None]:
    use_redis(server.url)
    traffic = Traffic(server)
    yield
    assert traffic.commands() == {}


def refused(error: type[Exception], call: Callable[[], object]) -> str:
    with pytest.raises(error) as raised:
        call()
    assert type(raised.value) is error, "it is the error of somewhere deeper"
    said = str(raised.value)
    assert 0 < len(said) < 400
    assert said.isprintable(), "it would garble a log"
    return said


def kind_of(value: Any, *right: type) -> type[Exception]:
    """A value of the wrong type is a `TypeError`, every other one a `ValueError`."""
    return ValueError if type(value) in right else TypeError


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_name(nothing_is_sent: None, name: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: locks.acquire(name),
        lambda: locks.get(name),
        lambda: locks.is_locked(name),
        lambda: locks.clear(name),
        lambda: lock(name).__enter__(),
        lambda: lock(name)(len),
        lambda: locks.acquire_all(["video:1", name]),
        lambda: lock(["video:1", name]).__enter__(),
    ]
    for call in calls:
        assert "name" in refused(kind_of(name, str), call)


@pytest.mark.parametrize(
    ("option", "value"),
    [*(("ttl", ttl) for ttl in TTLS), *(("wait", wait) for wait in WAITS)],
    ids=lambda value: repr(value)[:20],
)
def test_seconds(nothing_is_sent: None, option: str, value: Any) -> None:
    options: dict[str, Any] = {option: value}
    for call in (
        lambda: locks.acquire("video:1", **options),
        lambda: locks.acquire_all(["video:1"], **options),
        lambda: lock("video:1", **options),
    ):
        assert option in refused(kind_of(value, int, float), call)


def test_an_extension(server: RedisServer, use_redis: UseRedis) -> None:
    use_redis(server.url)
    lease = taken("video:1")
    traffic, ends = Traffic(server), lease._entry.until
    for ttl in TTLS:
        assert "ttl" in refused(kind_of(ttl, int, float), lambda ttl=ttl: lease.extend(ttl))  # type: ignore[misc]
    assert traffic.commands() == {}
    assert (lease.held, lease._entry.until) == (True, ends)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"lease": 60}, TypeError),
        ({"timeout": 60}, TypeError),
        ({"renew": "yes"}, TypeError),
        ({"renew": 1}, TypeError),
        ({"store": None}, TypeError),
        ({"on_conflict": "ignore"}, ValueError),
        ({"on_conflict": None}, ValueError),
    ],
    ids=str,
)
def test_option(nothing_is_sent: None, options: dict[str, Any], error: type[Exception]) -> None:
    assert next(iter(options)) in refused(error, lambda: lock("video:1", **options))
    if options.keys() <= {"timeout", "renew"}:
        refused(error, lambda: locks.acquire("video:1", **options))


def build(date: str) -> None: ...


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda of: of.list(prefix=None), TypeError),
        (lambda of: of.count(7), TypeError),
        (lambda of: of.list(limit=-1), ValueError),
        (lambda of: of.list(limit=1.5), TypeError),
        (lambda of: of.list(offset=True), TypeError),
        (lambda of: of.get(["video:1"]), TypeError),
        (lambda of: of.try_acquire("video:1", token=b"t" * 22), TypeError),
        (lambda of: of.try_acquire("video:1", token="t" * 21 + "\n"), ValueError),
        (lambda of: of.try_acquire("video:1", token="é" * 22), ValueError),
        (lambda of: of.clear("video:1", token=b"t"), TypeError),
        (lambda of: of.using("nope"), InvalidLockConfig),
        (lambda of: of.using(None), InvalidLockConfig),
        (lambda _: lock("report:{dtae}")(build), ValueError),
        (lambda _: lock("{date}")(build)(""), ValueError),
    ],
)
def test_other_arguments(
    nothing_is_sent: None, call: Callable[[Any], object], error: type[Exception]
) -> None:
    refused(error, lambda: call(locks))
