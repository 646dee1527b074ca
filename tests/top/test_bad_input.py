"""What cannot be meant is one clear error, before anything is sent."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from django_tasklock import InvalidLockConfig, lock, locks
from tests.app.models import Job
from tests.conftest import UseRedis
from tests.inside import asked
from tests.servers import RedisServer
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


@pytest.fixture
def nothing_is_sent(own_redis_server: RedisServer, use_redis: UseRedis) -> Iterator[Traffic]:
    use_redis(own_redis_server.url)
    traffic = Traffic(own_redis_server)
    yield traffic
    assert traffic.commands() == {}


def test_no_name(nothing_is_sent: Traffic) -> None:
    # Given what somebody takes for a name: a row, and a text with a space
    row, text = Job(pk=7), "report: monday"

    # I expect to be told what to write
    calls: list[Any] = [locks.acquire, locks.get, lambda name: lock(name)(len)]
    for call in calls:
        assert 'a str, such as f"video:{video.pk}", not Job: ' in refused(TypeError, call, row)
        said = refused(ValueError, call, text)
        assert "no spaces (use make_name()), not 'report: monday'" in said


def test_what_only_a_lease_has(nothing_is_sent: Traffic) -> None:
    for verb in ("release", "extend"):
        said = refused(AttributeError, getattr, locks, verb)
        assert f"locks has no {verb}: a lease of locks.acquire() has release() and" in said


MODULE = """
from django_tasklock import lock
from django_tasklock.tasks import locked
from django_tasklock.views import lock_view
"""
BARE = "@{0}\ndef work(number): pass"
NAMED = """
def named(number): return "a"
@plain
def wrapped(number): return "a"
class Class:
    def own(self, number): return "a"
    @{0}(own)
    def work(self, number): pass
@{0}(named)
def work(number): pass
@{0}(wrapped)
def other(number): pass
@{0}(lambda number: "a")
def third(number): pass
"""


def plain(function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def called(*args: object) -> object:
        return function(*args)

    return called


def test_no_arguments() -> None:
    """A function may be a name's, too, but not one that is only being defined."""
    module = types.ModuleType("beginner")
    exec(MODULE, vars(module))
    vars(module)["plain"] = plain

    # Given functions under a decorator that has no arguments
    for name in ("lock", "locked", "lock_view"):
        for bare in (BARE, BARE.replace("\n", "\n@plain\n"), "@plain\n" + BARE):
            # I expect an error when the module is imported, which says what to write
            says = refused(TypeError, exec, bare.format(name), vars(module))
            assert says == f'@{name} needs the name of a lock: write @{name}("a name")'

    # And the same of methods, where only `lock` knows that a function is no name
    with pytest.raises(TypeError, match="@lock needs the name of a lock"):
        exec("class Class:\n @lock\n def work(self): pass", vars(module))

    # And that functions may make the names all the same
    for name in ("locked", "lock_view"):
        exec(NAMED.format(name), vars(module))
        for function in ("named", "wrapped", "work", "other", "third"):
            del vars(module)[function]


def refused(error: type[Exception], call: Callable[..., object], *args: Any, **more: Any) -> str:
    with pytest.raises(error) as raised:
        call(*args, **more)
    assert type(raised.value) is error, "it is the error of somewhere deeper"
    said = str(raised.value)
    assert 0 < len(said) < 400
    assert said.isprintable(), "it would garble a log"
    return said


def kind_of(value: Any, *right: type) -> type[Exception]:
    """A value of the wrong type is a `TypeError`, every other one a `ValueError`."""
    return ValueError if type(value) in right else TypeError


def test_name(nothing_is_sent: Traffic) -> None:
    # Given names that are none: of another type, too long, or not to be printed
    for name in NAMES:
        # I expect each call to say so, for one lock and for several, and nothing to be sent
        error, several = kind_of(name, str), ["video:1", name]
        for call in (locks.acquire, locks.get, locks.clear):
            assert "name" in refused(error, call, name)
        assert "name" in refused(error, locks.acquire_all, several)
        for given in (name, several):
            assert "name" in refused(error, lambda: lock(given).__enter__())  # noqa: B023
            assert "name" in refused(error, lambda: lock(given)(len))  # noqa: B023


@pytest.mark.parametrize(("option", "values"), [("ttl", TTLS), ("wait", WAITS)])
def test_seconds(nothing_is_sent: Traffic, option: str, values: list[Any]) -> None:
    for value in values:
        error, given = kind_of(value, int, float), {option: value}
        assert option in refused(error, locks.acquire, "video:1", **given)
        assert option in refused(error, locks.acquire_all, ["video:1"], **given)
        assert option in refused(error, lock, "video:1", **given)


def test_an_extension(nothing_is_sent: Traffic) -> None:
    lease = taken("video:1")
    nothing_is_sent.restart()
    left = lease.remaining
    for ttl in TTLS:
        assert "ttl" in refused(kind_of(ttl, int, float), lease.extend, ttl)
    assert lease.held
    assert 0 < lease.remaining <= left


WRONG: list[tuple[type[Exception], Callable[..., object], list[Any], dict[str, Any]]] = [
    (TypeError, lock, ["video:1"], {"timeout": 60}),
    (TypeError, lock, ["video:1"], {"renew": 1}),
    (TypeError, lock, ["video:1"], {"store": None}),
    (ValueError, lock, ["video:1"], {"on_conflict": "ignore"}),
    (ValueError, lock("report:{vlaue}"), [kind_of], {}),
    (ValueError, lock("{value}")(kind_of), [""], {}),
    (TypeError, locks.acquire, ["video:1"], {"renew": "yes"}),
    (TypeError, locks.list, [None], {}),
    (ValueError, locks.list, [], {"limit": -1}),
    (TypeError, locks.list, [], {"limit": 1.5}),
    (TypeError, locks.list, [], {"offset": True}),
    (TypeError, locks.count, [7], {}),
    (TypeError, asked, ["video:1"], {"token": b"t" * 22}),
    (ValueError, asked, ["video:1"], {"token": "t" * 21 + "\n"}),
    (ValueError, asked, ["video:1"], {"token": "é" * 22}),
    (TypeError, locks.clear, ["video:1"], {"token": b"t"}),
    (InvalidLockConfig, locks.using, ["nope"], {}),
]


def test_other_arguments(nothing_is_sent: Traffic) -> None:
    for error, call, arguments, options in WRONG:
        refused(error, call, *arguments, **options)
