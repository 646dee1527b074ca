"""A connection that is cut after any byte of a request, or of a reply: no verb lies, nothing stays.

Some boundaries of each verb are taken, others on each run; EVERY_BYTE=1 takes all.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    """A call, what has to be there before it, and what must hold after it.

    ``before`` gets the lock's name; what it returns is passed on. ``after`` gets the answer as
    well: what the call returned, or `OUT`.
    """

    before: Callable[[str], Any]
    call: Callable[[str, Any], Any]
    after: Callable[[str, Any, Any], None]


def direct() -> Any:
    """The same locks, without the proxy."""
    return locks.using("direct")


def nothing(name: str) -> None:
    """Nobody holds the lock."""


def ours(name: str) -> Lease:
    lease = locks.acquire(name, ttl=LONG)
    assert lease is not None
    return lease


def anothers(name: str) -> Lease:
    lease: Lease | None = direct().acquire(name, ttl=LONG)
    assert lease is not None
    return lease


def is_free(name: str) -> bool:
    return direct().get(name) is None


def granted(name: str, _: object, answer: Any) -> None:
    if answer is not OUT:
        assert answer is not None, "a lock that nobody holds was refused"
        assert direct().get(answer.name).token == answer.token
        assert answer.release() is True
    until(lambda: is_free(name), "that the lock is given back")


def refused(name: str, other: Lease, answer: Any) -> None:
    assert answer in (None, OUT), "a lock that another one holds was granted"
    assert other.release() is True


def extended(name: str, lease: Lease, answer: Any) -> None:
    assert answer in (True, OUT)
    assert answer is OUT or direct().get(name).ttl > LONG
    assert lease.release() is True
    assert is_free(name)


def released(name: str, lease: Lease, answer: Any) -> None:
    assert answer in (True, OUT), "the lease was there"
    if answer is OUT:
        lease.release()
    assert is_free(name)


def left_alone(name: str, leases: tuple[Lease, Lease], answer: Any) -> None:
    # A reply that was lost may have been that of a release: then it is said to be one.
    assert answer in (False, True, OUT)
    assert leases[1].release() is True, "another one's lease was released"


def late(name: str) -> tuple[Lease, Lease]:
    lease = ours(name)
    direct().clear(name)
    return lease, anothers(name)


def cleared(name: str, other: Lease, answer: Any) -> None:
    assert answer in (True, OUT), "there was a lease"
    assert answer is OUT or is_free(name)
    direct().clear(name)


def said(right: Callable[[Lease, Any], bool]) -> Callable[[str, Lease, Any], None]:
    def after(name: str, other: Lease, answer: Any) -> None:
        assert answer is OUT or right(other, answer), answer
        assert other.release() is True

    return after


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


def both(name: str, _: object, answer: Any) -> None:
    if answer is not OUT:
        assert answer is not None
        assert not is_free(name)
        assert not is_free(f"{name}-2")
        for lease in answer:
            assert lease.release() is True
    until(lambda: is_free(name) and is_free(f"{name}-2"), "that both are given back")


def permit(name: str) -> Lease:
    lease: Lease | None = direct().acquire(name, ttl=LONG, slots=2)
    assert lease is not None
    return lease


def second_permit(name: str, other: Lease, answer: Any) -> None:
    if answer is not OUT:
        assert answer is not None
        assert answer.name != other.name
        answer.release()
    until(lambda: direct().count(name) == 1, "that the permit is given back")
    assert other.release() is True


def in_a_block(name: str, _: object) -> bool:
    with lock(name, ttl=LONG) as lease:
        assert direct().get(name).token == lease.token
    return True


def given_back(name: str, _: object, answer: Any) -> None:
    assert answer in (True, OUT)
    until(lambda: is_free(name), "that the lock is given back")


def held(name: str, _: object, answer: Any) -> None:
    assert answer is OUT or (answer is not None and answer.held_by == "al")
    assert answer is OUT or direct().get(name).held_by == "al"
    direct().clear(name)


def handed_on(name: str, lease: Lease, answer: Any) -> None:
    if answer is not OUT:
        adopted = direct().adopt(answer)
        assert adopted is not None
        assert adopted.token == lease.token
        assert adopted.release() is True
    direct().clear(name)


def handle(name: str) -> str:
    made: str = ours(name).detach()
    return made


def adopted(name: str, _: str, answer: Any) -> None:
    if answer is not OUT:
        assert answer is not None, "nobody else has adopted it"
        assert direct().get(name).token == answer.token
        assert answer.release() is True
    direct().clear(name)


def on_a_new_connection(name: str, _: object) -> Any:
    store: Any = stores["default"]
    store.client.close_idle()
    return locks.acquire(name, ttl=LONG)


def without_scripts(name: str) -> None:
    """The server has been started again: it needs the text of each script."""
    direct().store.client.command("SCRIPT", "FLUSH")


VERBS = {
    "acquire": Verb(nothing, lambda name, _: locks.acquire(name, ttl=LONG), granted),
    "acquire on a new connection": Verb(nothing, on_a_new_connection, granted),
    "acquire after a restart": Verb(
        without_scripts, lambda name, _: locks.acquire(name, ttl=LONG), granted
    ),
    "acquire what is held": Verb(anothers, lambda name, _: locks.acquire(name), refused),
    "acquire and wait": Verb(anothers, waited, granted),
    "extend": Verb(ours, lambda _, lease: lease.extend(2 * LONG), extended),
    "release": Verb(ours, lambda _, lease: lease.release(), released),
    "release too late": Verb(late, lambda _, leases: leases[0].release(), left_alone),
    "clear": Verb(anothers, lambda name, _: locks.clear(name), cleared),
    "clear with a token": Verb(
        anothers, lambda name, lease: locks.clear(name, lease.token), cleared
    ),
    "get": Verb(
        anothers,
        lambda name, _: locks.get(name),
        said(lambda other, answer: answer is not None and answer.token == other.token),
    ),
    "is_locked": Verb(
        anothers, lambda name, _: locks.is_locked(name), said(lambda _, answer: answer is True)
    ),
    "list": Verb(
        anothers,
        lambda name, _: locks.list(name),
        said(lambda other, answer: [info.token for info in answer] == [other.token]),
    ),
    "count": Verb(anothers, lambda name, _: locks.count(name), said(lambda _, answer: answer == 1)),
    "several names": Verb(
        nothing, lambda name, _: locks.acquire_all([name, f"{name}-2"], ttl=LONG), both
    ),
    "hold": Verb(nothing, lambda name, _: locks.hold(name, LONG, by="al"), held),
    "detach": Verb(ours, lambda _, lease: lease.detach(), handed_on),
    "adopt": Verb(handle, lambda _, handle: locks.adopt(handle), adopted),
    "slots": Verb(permit, lambda name, _: locks.acquire(name, ttl=LONG, slots=2), second_permit),
    "block": Verb(nothing, in_a_block, given_back),
}


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


def tried(verb: Verb, name: str, before: Callable[[], object]) -> Any:
    ready = verb.before(name)
    stores["default"].client.command("PING")  # type: ignore[attr-defined] # A whole connection.
    before()
    try:
        return verb.call(name, ready), ready
    except StoreUnavailable:
        return OUT, ready


@pytest.mark.parametrize("name", VERBS)
def test_a_cut_after_any_byte(name: str, proxy: ByteProxy) -> None:
    seed = drawn_seed()
    verb, tries, cuts = VERBS[name], 0, 0
    for first in ("video:a00000", "video:b00000"):  # The second finds its scripts on the server.
        answer, ready = tried(verb, first, proxy.count)
        lengths = proxy.count()
        verb.after(first, ready, answer)
    directions: tuple[Direction, ...] = ("request", "reply")
    for direction in directions:
        step = STEP if EVERY else max(STEP, lengths[direction] // MOST)
        offset = random.Random(f"{seed} {name} {direction}").randrange(step)
        for number in range(offset, lengths[direction], step):
            tries += 1
            cuts += one_cut(verb, f"video:{tries:06}", proxy, direction, number)
    # What is sent may be a few bytes shorter the next time.
    assert cuts > 0.9 * tries, f"{cuts} of {tries}"
    do = stores["direct"].client.command  # type: ignore[attr-defined]
    endless = [key for key in do("KEYS", "*lock:*") if do("PTTL", key) == -1]
    assert endless == []


def one_cut(verb: Verb, name: str, proxy: ByteProxy, direction: Direction, number: int) -> bool:
    """Whether the connection was cut, as all has passed before so many bytes."""
    answer, ready = tried(verb, name, lambda: proxy.cut_after(direction, number))
    was_cut = proxy.has_cut
    proxy.count()
    try:
        verb.after(name, ready, answer)
        later = direct().acquire(name, ttl=LONG)
        assert later is not None, "a later call is refused"
        later.release()
    except AssertionError as error:
        raise AssertionError(f"after {number} bytes of the {direction}: {error}") from error
    return was_cut
