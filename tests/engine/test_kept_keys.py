"""A lease keeps the key that was made for it, though the cache's keys depend on the thread."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command

from django_tasklock import Lease, LockNotAcquired, lock, locks
from tests.conftest import UseCaches
from tests.inside import Outcome, clear_seen, digest_of, lock_of, seen_lock
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, in_child, renewed
from tests.store_cases import redis_cache
from tests.tenants import MAKE_DIGEST, MAKE_KEY, tenant
from tests.waiting import until

NAME = "report:1"


@pytest.fixture(autouse=True)
def _tenants(use_caches: UseCaches, redis_server: RedisServer) -> Iterator[None]:
    use_caches({"default": redis_cache(redis_server.url) | {"KEY_FUNCTION": MAKE_KEY}}, None)
    yield
    # Nothing is left, whatever tenant it was of.
    with tenant("acme"):
        assert locks.list() == []
    assert locks.count() == 0


def taken_by(name: str, **options: Any) -> Lease:
    with tenant(name):
        lease = locks.acquire(NAME, **{"ttl": LONG, **options})
    assert lease is not None
    return lease


def waiter_of(name: str, **options: Any) -> Meanwhile[Lease]:
    """A waiter of this tenant, in a thread that has no tenant otherwise."""
    thread = Meanwhile(lambda: taken_by(name, wait=LONG, **options))
    with tenant(name):
        until(lambda: locks.waiters(NAME))
    return thread


def test_each_tenant_has_locks_of_its_own() -> None:
    # Given two tenants that take a lock of the same name
    acme, beta = taken_by("acme"), taken_by("beta")
    # I expect two locks, of which each is released alone
    assert {info.key.partition(":")[0] for info in locks.list(NAME)} == {"acme", "beta"}
    assert acme.release()
    assert [info.token for info in locks.list(NAME)] == [beta.token]
    assert beta.release()
    # And a block of one tenant to be no block of the other
    mine = lock(NAME, reentrant=True)
    with tenant("acme"), mine as outer, tenant("beta"), lock(NAME, reentrant=True) as inner:
        assert inner.token != outer.token


def test_another_thread_extends_and_releases_it() -> None:
    lease = taken_by("acme", ttl=1, renew=True)
    renewed(lease, 3)
    assert Meanwhile(lambda: lease.extend(LONG)).result()
    assert Meanwhile(lease.release).result()


@pytest.mark.parametrize("slots", [1, 2])
def test_a_waiter_gets_it_from_a_thread_without_a_tenant(slots: int) -> None:
    leases = [taken_by("acme", slots=slots) for _ in range(slots)]
    waiter = waiter_of("acme", slots=slots)
    assert Meanwhile(leases[-1].release).result()
    got = waiter.result()
    assert got.slot == leases.pop().slot
    assert all(Meanwhile(lease.release).result() for lease in (got, *leases))


@pytest.mark.parametrize("function", [MAKE_KEY, MAKE_DIGEST])
def test_a_hold_keeps_callers_of_its_tenant_from_its_permits(
    use_caches: UseCaches, redis_server: RedisServer, function: str
) -> None:
    """And its end, in a thread without a tenant, wakes them."""
    use_caches({"default": redis_cache(redis_server.url) | {"KEY_FUNCTION": function}}, None)
    acme = taken_by("acme", slots=2)
    with tenant("acme"):
        info = locks.hold(NAME, LONG)
        assert info is not None
        with pytest.raises(LockNotAcquired) as refused, lock(NAME, slots=2):
            raise AssertionError
        assert refused.value.holder is not None
        assert refused.value.holder.key == info.key
    waiter = waiter_of("acme", slots=2)
    assert taken_by("beta", slots=2).release()
    assert Meanwhile(acme.release).result()
    with tenant("acme"):
        assert locks.waiters(NAME), "it waits on"
    assert Meanwhile(lambda: locks.clear(info.name, token=info.token)).result()
    assert waiter.result().release()


def test_a_permit_is_handed_to_no_waiter_of_another_tenant(
    use_caches: UseCaches, redis_server: RedisServer
) -> None:
    """Also where a key is a digest, which does not lead from a permit to its queue: a lease keeps
    that, and a handle does not have it."""
    use_caches({"default": redis_cache(redis_server.url) | {"KEY_FUNCTION": MAKE_DIGEST}}, None)
    acme, other, *beta = (taken_by(each, slots=2) for each in ("acme", "acme", "beta", "beta"))
    waiter, handle = waiter_of("beta", slots=2), other.detach()
    with tenant("beta"):
        assert acme.release()
        assert locks.waiters(NAME), "it waits on"
        adopted = locks.adopt(handle)
        assert adopted is not None
        assert adopted.release()
        assert locks.waiters(NAME), "it waits on"
        assert beta[1].release()
    got = waiter.result()
    assert got.slot == beta[1].slot
    assert got.release()
    assert beta[0].release()


def test_operators_tell_the_locks_of_two_tenants_apart() -> None:
    """They clear the one that was listed, chosen by its box, or by its name alone."""
    acme, beta = taken_by("acme"), taken_by("beta")
    waiter = waiter_of("acme")
    infos = sorted(locks.list(NAME), key=lambda info: info.key)
    assert [info.waiters for info in infos] == [1, 0]
    held = [seen_lock(lock_of(info).pk).info for info in infos]
    assert [info.token for info in held if info] == [info.token for info in infos]
    with tenant("beta"):
        assert locks.clear(infos[0].name, token=acme.token)
        assert locks.is_locked(NAME)
        got = waiter.result()
        digest = next(map(digest_of, locks.list()))
        seen = locks.store.find_lease([NAME], lambda each: digest_of(each) == digest)
        assert seen is not None
        outcome = clear_seen(seen, by="a page")
    assert outcome is Outcome.CLEARED
    assert [got.extend(), beta.extend()].count(True) == 1
    call_command("locks", "clear", "--prefix", NAME, "--noinput")


def test_another_process_adopts_it_and_reads_the_name_in_an_error() -> None:
    lease = taken_by("acme")
    with tenant("acme"), pytest.raises(LockNotAcquired) as refused, lock(NAME):
        pass
    error = pickle.loads(pickle.dumps(refused.value))
    assert (error.name, error.holder.key) == (NAME, locks.list()[0].key)
    assert json.loads(json.dumps(lease.name)) == NAME
    handle = lease.detach()
    assert in_child(lambda: (adopted := locks.adopt(handle, renew=True)) and adopted.release())
