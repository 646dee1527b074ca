"""A connection that is cut after any byte of a request, or of a reply: no verb lies, nothing stays.

Some boundaries of each verb are taken, others on each run; EVERY_BYTE=1 takes all.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import pytest

from django_tasklock import Lease, StoreUnavailable, lock, locks
from django_tasklock.stores import stores
from tests.conftest import UseCaches
from tests.nightly.byte_proxy import ByteProxy, Direction
from tests.seeds import drawn_seed
from tests.servers import RedisServer
from tests.store_cases import redis_cache
from tests.waiting import until

EVERY = bool(os.environ.get("EVERY_BYTE"))
STEP = 1 if EVERY else 4
"""every so many-th boundary is taken"""
MOST = 200
"""unless those are more; the texts of scripts are long"""
LONG = 60.0
OUT = object()
"""the call said that the store is unavailable"""


@dataclass(frozen=True)
class Verb:
    """A call, what has to be there before it, and what it may answer if it is answered.

    ``before`` gets the lock's name, and what it returns is passed on: the lease of a test that must
    still be there afterwards, unless this verb ``ends`` it.
    """

    before: Callable[[str], Any]
    call: Callable[[str, Any], Any]
    right: Callable[[str, Any, Any], bool]
    ends: bool = False


def direct() -> Any:
    """The same locks, without the proxy."""
    return locks.using("direct")


def nothing(name: str) -> None:
    """Nobody holds the lock."""


def ours(name: str) -> Lease:
    lease = locks.acquire(name, ttl=LONG)
    assert lease is not None
    return lease


def anothers(name: str, slots: int = 1) -> Lease:
    lease: Lease | None = direct().acquire(name, ttl=LONG, slots=slots)
    assert lease is not None
    return lease


def late(name: str) -> tuple[Lease, Lease]:
    lease = ours(name)
    direct().clear(name)
    return lease, anothers(name)


def without_scripts(name: str) -> None:
    """The server has been started again: it needs the text of each script."""
    direct().store.client.command("SCRIPT", "FLUSH")


def on_a_new_connection(name: str, _: object) -> Any:
    store: Any = stores["default"]
    store.client.close_idle()
    return locks.acquire(name, ttl=LONG)


def waited(name: str, other: Lease) -> Any:
    """Another one holds the lock until somebody waits for it."""

    def release_it() -> None:
        until(lambda: over.is_set() or direct().store.waiters(name), every=0.001)
        other.release()

    over = threading.Event()
    holder = threading.Thread(target=release_it)
    holder.start()
    try:
        return locks.acquire(name, ttl=LONG, wait=LONG)
    finally:
        over.set()
        holder.join()


def in_a_block(name: str, _: object) -> bool:
    with lock(name, ttl=LONG) as lease:
        assert direct().get(name).token == lease.token
    return True


def token_of(name: str) -> Any:
    info = direct().get(name)
    return info and info.token


def granted(name: str, _: object, answer: Any) -> bool:
    return answer is not None and token_of(answer.name) == answer.token


def extended(name: str, lease: Lease, answer: Any) -> bool:
    return answer is True and direct().get(name).ttl > LONG


def freed(name: str, _: object, answer: Any) -> bool:
    return answer is True and token_of(name) is None


def adopts_ours(name: str, lease: Lease, handle: Any) -> bool:
    adopted = direct().adopt(handle)
    return adopted is not None and adopted.token == lease.token


def shown(name: str, other: Lease, answer: Any) -> bool:
    return answer is not None and answer.token == other.token


def both(name: str, _: object, answer: Any) -> bool:
    return [each.token for each in answer] == [token_of(name), token_of(f"{name}-2")]


VERBS = {
    "acquire": Verb(nothing, lambda name, _: locks.acquire(name, ttl=LONG), granted),
    "acquire on a new connection": Verb(nothing, on_a_new_connection, granted),
    "acquire after a restart": Verb(
        without_scripts, lambda name, _: locks.acquire(name, ttl=LONG), granted
    ),
    "acquire what is held": Verb(
        anothers, lambda name, _: locks.acquire(name), lambda name, other, it: it is None
    ),
    "acquire and wait": Verb(anothers, waited, granted, ends=True),
    "extend": Verb(ours, lambda name, lease: lease.extend(2 * LONG), extended),
    "release": Verb(ours, lambda name, lease: lease.release(), freed, ends=True),
    # A reply that was lost may have been that of a release: then it is said to be one.
    "release too late": Verb(
        late, lambda name, leases: leases[0].release(), lambda name, leases, it: it in (False, True)
    ),
    "clear": Verb(anothers, lambda name, _: locks.clear(name), freed, ends=True),
    "clear with a token": Verb(
        anothers, lambda name, lease: locks.clear(name, lease.token), freed, ends=True
    ),
    "get": Verb(anothers, lambda name, _: locks.get(name), shown),
    "is_locked": Verb(
        anothers, lambda name, _: locks.is_locked(name), lambda name, other, it: it is True
    ),
    "list": Verb(
        anothers,
        lambda name, _: locks.list(name),
        lambda name, other, it: [info.token for info in it] == [other.token],
    ),
    "count": Verb(anothers, lambda name, _: locks.count(name), lambda name, other, it: it == 1),
    "several names": Verb(
        nothing, lambda name, _: locks.acquire_all([name, f"{name}-2"], ttl=LONG), both
    ),
    "hold": Verb(
        nothing,
        lambda name, _: locks.hold(name, LONG, by="al"),
        lambda name, _, it: it.held_by == direct().get(name).held_by == "al",
    ),
    "detach": Verb(ours, lambda name, lease: lease.detach(), adopts_ours, ends=True),
    "adopt": Verb(
        lambda name: ours(name).detach(), lambda name, handle: locks.adopt(handle), granted
    ),
    "slots": Verb(
        lambda name: anothers(name, slots=2),
        lambda name, _: locks.acquire(name, ttl=LONG, slots=2),
        lambda name, other, it: granted(name, other, it) and it.name != other.name,
    ),
    "block": Verb(nothing, in_a_block, freed),
}
KEPT = ("hold", "detach", "adopt", "clear", "clear with a token")
"""what these leave is no lease of this process: it stays where the answer was lost"""


@pytest.fixture
def proxy(own_redis_server: RedisServer, use_caches: UseCaches) -> Iterator[ByteProxy]:
    with ByteProxy(("127.0.0.1", own_redis_server.port)) as proxy:
        behind = redis_cache(proxy.url)
        quiet = {"OPTIONS": {"HISTORY": 0}}  # Its thread would send at moments of its own.
        use_caches(
            {"default": behind, "direct": behind | {"LOCATION": own_redis_server.url}},
            {"default": quiet, "direct": quiet | {"CACHE": "direct"}},
        )
        yield proxy


@pytest.mark.parametrize("name", VERBS)
def test_a_cut_after_any_byte(name: str, proxy: ByteProxy) -> None:
    # Given a verb, and how many bytes it sends and is sent
    chance, tries, cuts = Random(f"{drawn_seed()} {name}"), 0, 0
    for first in ("video:a00000", "video:b00000"):  # The second finds its scripts on the server.
        lengths = one_try(name, first, proxy, proxy.count)

    # When the connection is cut after some byte, I expect what `one_try` says
    directions: tuple[Direction, ...] = ("request", "reply")
    for direction in directions:
        step = STEP if EVERY else max(STEP, lengths[direction] // MOST)
        for number in range(chance.randrange(step), lengths[direction], step):
            tries += 1
            try:
                cut = partial(proxy.cut_after, direction, number)
                one_try(name, f"video:{tries:06}", proxy, cut)
            except AssertionError as error:
                raise AssertionError(f"after {number} bytes of the {direction}: {error}") from error
            cuts += proxy.has_cut
    # What is sent may be a few bytes shorter the next time.
    assert cuts > 0.9 * tries, f"{cuts} of {tries}"

    # And nothing to be left that does not end by itself
    do = stores["direct"].client.command  # type: ignore[attr-defined]
    assert [key for key in do("KEYS", "*lock:*") if do("PTTL", key) == -1] == []


def one_try(
    called: str, name: str, proxy: ByteProxy, before: Callable[[], object]
) -> dict[Direction, int]:
    """The answer is right, or the store is said to be unavailable. What was there is there still;
    what was granted is given back, and then the lock can be had. Returns how much was sent."""
    verb = VERBS[called]
    ready = verb.before(name)
    stores["default"].client.command("PING")  # type: ignore[attr-defined] # A whole connection.
    before()
    try:
        answer = verb.call(name, ready)
    except StoreUnavailable:
        answer = OUT
    passed = proxy.count()
    if answer is not OUT:
        assert verb.right(name, ready, answer), f"it answered {answer!r}"
        for lease in answer if isinstance(answer, list) else [answer]:
            assert not isinstance(lease, Lease) or lease.release() is True
    for lease in ready if isinstance(ready, tuple) else [ready]:
        if isinstance(lease, Lease):
            there = lease.release()
            assert there or verb.ends or (called, lease) == ("release too late", ready[0])
    if called in KEPT:
        direct().clear(name)
    until(lambda: direct().count(name) == 0, "that everything is given back")
    later = direct().acquire(name, ttl=LONG)
    assert later is not None, "a later call is refused"
    later.release()
    return passed
