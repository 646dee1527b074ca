"""What cannot be meant is one clear error, before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from celery import Celery

from django_tasklock import InvalidLockConfig, Lease, lock, locks
from django_tasklock.celery import LockedTask
from tests import needs
from tests.conftest import UseRedis
from tests.servers import NoRedis, RedisServer, own_redis
from tests.steps import Traffic, taken

NAMES: list[tuple[Any, type[Exception]]] = [
    ("", ValueError),
    ("x" * 201, ValueError),
    ("a b", ValueError),
    (" ", ValueError),
    ("a\tb", ValueError),
    ("a\nb", ValueError),
    ("a\x00b", ValueError),
    ("\x1b[2J", ValueError),
    ("a\u202eb", ValueError),
    ("a\u200bb", ValueError),
    ("\ud800", ValueError),
    ("a\xa0b", ValueError),
    (None, TypeError),
    (7, TypeError),
    (b"video:1", TypeError),
    ({"video:1"}, TypeError),
    ([["video:1"]], TypeError),
]
TTLS: list[tuple[Any, type[Exception]]] = [
    (0, ValueError),
    (0.0, ValueError),
    (0.0009, ValueError),
    (-1, ValueError),
    (math.nan, ValueError),
    (math.inf, ValueError),
    (-math.inf, ValueError),
    (1e300, ValueError),
    (10**400, ValueError),
    ("60", TypeError),
    (True, TypeError),
    (False, TypeError),
    (Decimal(60), TypeError),
    ([60], TypeError),
    (1j, TypeError),
]
WAITS: list[tuple[Any, type[Exception]]] = [
    (-1, ValueError),
    (-0.001, ValueError),
    (math.nan, ValueError),
    (-math.inf, ValueError),
    ("5", TypeError),
    (True, TypeError),
    (False, TypeError),
    ([], TypeError),
]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """One that nobody else asks anything meanwhile."""
    try:
        with own_redis(needs_own=True) as server:
            yield server
    except NoRedis as error:
        needs.missing(str(error))


@pytest.fixture(autouse=True)
def nothing_is_sent(server: RedisServer, use_redis: UseRedis) -> Iterator[None]:
    """Not a single command, whatever the test tries."""
    use_redis(server.url)
    traffic = Traffic(server)
    yield
    assert traffic.commands() == {}


def refused(error: type[Exception], call: Callable[[], object]) -> str:
    with pytest.raises(error) as raised:
        call()
    assert type(raised.value) is error, "it is the error of somewhere deeper"
    said = str(raised.value)
    assert said
    assert len(said) < 400
    assert said.isprintable(), "it would garble a log"
    return said


@pytest.mark.parametrize(("name", "error"), NAMES, ids=ascii)
def test_name(name: Any, error: type[Exception]) -> None:
    calls: list[Callable[[], object]] = [
        lambda: locks.acquire(name),
        lambda: locks.get(name),
        lambda: locks.is_locked(name),
        lambda: locks.clear(name),
        lambda: lock(name).__enter__(),
        lambda: lock(name)(len),
        lambda: locks.acquire_all(["video:1", name]),
        lambda: lock(["video:1", name]).__enter__(),
        lambda: lock(["video:1", name])(len),
    ]
    for call in calls:
        assert "name" in refused(error, call)


def test_list_of_names_is_for_lock_and_acquire_all_only() -> None:
    names: Any = ["video:1"]
    for verb in (locks.acquire, locks.get, locks.is_locked, locks.clear):
        assert "name" in refused(TypeError, lambda verb=verb: verb(names))  # type: ignore[misc]


@pytest.mark.parametrize(("ttl", "error"), TTLS, ids=lambda value: repr(value)[:20])
def test_ttl(ttl: Any, error: type[Exception]) -> None:
    for call in (
        lambda: locks.acquire("video:1", ttl=ttl),
        lambda: locks.acquire_all(["video:1"], ttl=ttl),
        lambda: lock("video:1", ttl=ttl),
    ):
        assert "ttl" in refused(error, call)


@pytest.mark.parametrize(("wait", "error"), WAITS, ids=repr)
def test_wait(wait: Any, error: type[Exception]) -> None:
    for call in (
        lambda: locks.acquire("video:1", wait=wait),
        lambda: locks.acquire_all(["video:1"], wait=wait),
        lambda: lock("video:1", wait=wait),
    ):
        assert "wait" in refused(error, call)


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
def test_option_of_lock(options: dict[str, Any], error: type[Exception]) -> None:
    assert next(iter(options)) in refused(error, lambda: lock("video:1", **options))


@pytest.mark.parametrize(
    ("options", "error"),
    [({"timeout": 60}, TypeError), ({"blocking": True}, TypeError), ({"renew": "no"}, TypeError)],
    ids=str,
)
def test_option_of_acquire(options: dict[str, Any], error: type[Exception]) -> None:
    refused(error, lambda: locks.acquire("video:1", **options))


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("report:{dtae}", ValueError),
        ("report:{}", ValueError),
        ("report:{0}", ValueError),
        ("report:{date", ValueError),
        ("a report:{date}", ValueError),
        ("x" * 201 + "{date}", ValueError),
    ],
)
def test_template_of_a_decorator(template: str, error: type[Exception]) -> None:
    def build(date: str) -> None: ...

    refused(error, lambda: lock(template)(build))


def test_value_that_makes_no_name_of_a_call() -> None:
    @lock("{date}")
    def build(date: str) -> None:
        pytest.fail("it ran")  # pragma: no cover

    refused(ValueError, lambda: build(""))
    refused(ValueError, lambda: build("x" * 201))


def test_value_that_makes_no_name_of_a_task() -> None:
    app = Celery("bad", broker="memory://", set_as_current=False, fixups=[])

    def process(video: str) -> None:
        pytest.fail("it ran")  # pragma: no cover

    make: Any = app.task
    task = make(process, name="p", base=LockedTask, lazy=False, shared=False, lock_name="{video}")
    refused(ValueError, lambda: task(""))
    refused(ValueError, lambda: task("x" * 201))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: locks.list(prefix=None), TypeError),  # type: ignore[arg-type]
        (lambda: locks.list(prefix=b"a"), TypeError),  # type: ignore[arg-type]
        (lambda: locks.list(limit=-1), ValueError),
        (lambda: locks.list(limit=1.5), TypeError),  # type: ignore[arg-type]
        (lambda: locks.list(limit=True), TypeError),
        (lambda: locks.list(offset=-1), ValueError),
        (lambda: locks.list(offset="0"), TypeError),  # type: ignore[arg-type]
        (lambda: locks.list(offset=None), TypeError),  # type: ignore[arg-type]
        (lambda: locks.count(7), TypeError),  # type: ignore[arg-type]
        (lambda: locks.try_acquire("video:1", token=7), TypeError),  # type: ignore[arg-type]
        (lambda: locks.try_acquire("video:1", token=b"t" * 22), TypeError),  # type: ignore[arg-type]
        (lambda: locks.try_acquire("video:1", token=""), ValueError),
        (lambda: locks.try_acquire("video:1", token="t" * 21), ValueError),
        (lambda: locks.try_acquire("video:1", token="t" * 23), ValueError),
        (lambda: locks.try_acquire("video:1", token="t" * 21 + "\n"), ValueError),
        (lambda: locks.try_acquire("video:1", token="é" * 22), ValueError),
        (lambda: locks.clear("video:1", token=7), TypeError),  # type: ignore[arg-type]
        (lambda: locks.clear("video:1", token=b"t"), TypeError),  # type: ignore[arg-type]
        (lambda: locks.using("nope"), InvalidLockConfig),
        (lambda: locks.using(None), InvalidLockConfig),  # type: ignore[arg-type]
    ],
)
def test_other_arguments(call: Callable[[], object], error: type[Exception]) -> None:
    refused(error, call)


class TestExtend:
    @pytest.fixture(autouse=True)
    def nothing_is_sent(self, server: RedisServer, use_redis: UseRedis) -> None:
        """The lease itself has to be taken first."""
        use_redis(server.url)

    @pytest.mark.parametrize(("ttl", "error"), TTLS, ids=lambda value: repr(value)[:20])
    def test_ttl_of_an_extension(
        self, server: RedisServer, ttl: Any, error: type[Exception]
    ) -> None:
        lease: Lease = taken("video:1")
        traffic = Traffic(server)
        ends = lease._deadline
        assert "ttl" in refused(error, lambda: lease.extend(ttl))
        assert traffic.commands() == {}
        assert (lease.held, lease._deadline) == (True, ends)
