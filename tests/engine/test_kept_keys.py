"""A lease keeps the key that was made for it, though the cache's keys depend on the thread."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import call_command

from django_tasklock import Lease, LockNotAcquired, lock, locks
from django_tasklock._engine.renewal import renewal
from django_tasklock.admin.rows import lock_of, seen_lock
from django_tasklock.operators.clearing import Outcome, clear_all
from django_tasklock.operators.held import as_seen, digest_of
from django_tasklock.stores import stores
from django_tasklock.stores.base import Note
from tests.conftest import UseCaches
from tests.servers import RedisServer
from tests.steps import LONG, in_child
from tests.store_cases import redis_cache
from tests.tenants import MAKE_KEY, tenant
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


def in_thread(call: Callable[[], Any]) -> Any:
    """Make a call in a thread that has no tenant."""
    said: list[Any] = []
    thread = threading.Thread(target=lambda: said.append(call()))
    thread.start()
    thread.join(LONG)
    return said.pop()


def taken_by(name: str, **options: Any) -> Lease:
    with tenant(name):
        lease = locks.acquire(NAME, **{"ttl": LONG, **options})
    assert lease is not None
    return lease


def is_free(name: str) -> bool:
    with tenant(name):
        return not locks.is_locked(NAME)


def test_each_tenant_has_locks_of_its_own() -> None:
    acme, beta = taken_by("acme"), taken_by("beta")
    assert {info.key.partition(":")[0] for info in locks.list(NAME)} == {"acme", "beta"}
    assert acme.release()
    assert is_free("acme")
    assert not is_free("beta")
    assert [info.token for info in locks.list(NAME)] == [beta.token]
    assert beta.release()


def test_it_is_renewed() -> None:
    lease = taken_by("acme", ttl=1, renew=True)
    until(lambda: lease.remaining < 0.8)
    until(lambda: lease.remaining > 0.9 or not lease.held)
    assert lease.held
    assert not is_free("acme")
    assert lease.release()
    assert is_free("acme")


def test_another_thread_extends_and_releases_it() -> None:
    lease = taken_by("acme")
    assert in_thread(lambda: lease.extend(LONG))
    assert in_thread(lease.release)
    assert is_free("acme")


def test_a_waiter_gets_it_from_a_thread_without_a_tenant() -> None:
    lease, got = taken_by("acme"), []

    def wait() -> None:
        with tenant("acme"), lock(NAME, ttl=LONG, wait=LONG) as mine:
            got.append(mine.fence)

    waiter = threading.Thread(target=wait)
    waiter.start()
    with tenant("acme"):
        until(lambda: locks.waiters(NAME))
    assert in_thread(lease.release)
    waiter.join(LONG)
    assert len(got) == 1


def test_an_operator_clears_the_lease_that_was_listed() -> None:
    acme, beta = taken_by("acme"), taken_by("beta")
    (seen,) = [info for info in locks.list() if info.token == acme.token]
    with tenant("beta"):
        assert locks.clear(seen.name, token=seen.token)
    assert is_free("acme")
    assert beta.release()


def test_the_command_clears_the_locks_of_all_tenants() -> None:
    taken_by("acme"), taken_by("beta")
    call_command("locks", "clear", "--prefix", NAME, "--noinput")
    assert is_free("acme")
    assert is_free("beta")


def test_so_does_a_page_whose_form_has_the_name_alone() -> None:
    acme, beta = taken_by("acme"), taken_by("beta")
    digest = next(digest_of(info) for info in locks.list() if info.token == acme.token)
    with tenant("beta"):
        seen = as_seen(locks, NAME, digest)
        assert seen is not None
        ((_, outcome),) = clear_all(locks, [seen], by="a page")
    assert outcome is Outcome.CLEARED
    assert is_free("acme")
    assert beta.release()


def test_operators_tell_the_locks_of_two_tenants_apart() -> None:
    """The boxes of the admin's list, and who waits."""
    acme, got = taken_by("acme"), list[str]()
    in_child(lambda: str(taken_by("beta").name))

    def wait() -> None:
        with tenant("acme"), lock(NAME, ttl=LONG, wait=LONG) as mine:
            got.append(mine.token)

    waiter = threading.Thread(target=wait)
    waiter.start()
    with tenant("acme"):
        until(lambda: locks.waiters(NAME))
    infos = sorted(locks.list(NAME), key=lambda info: info.key)
    assert [info.waiters for info in infos] == [1, 0]
    held = [seen_lock(lock_of(info).pk).info for info in infos]
    assert [info.token for info in held if info] == [info.token for info in infos]
    assert acme.release()
    waiter.join(LONG)
    assert len(got) == 1
    with tenant("beta"):
        assert locks.clear(NAME)


def test_another_process_adopts_it() -> None:
    handle = taken_by("acme").detach()

    def adopt_and_release() -> None:
        lease = locks.adopt(handle, renew=True)
        assert lease is not None
        assert lease.release()

    in_child(adopt_and_release)
    assert is_free("acme")


def test_permits() -> None:
    acme, other = taken_by("acme", slots=2), taken_by("acme", slots=2)
    got: list[Any] = []

    def wait() -> None:
        with tenant("acme"), lock(NAME, ttl=LONG, wait=LONG, slots=2) as mine:
            got.append(mine.slot)

    waiter = threading.Thread(target=wait)
    waiter.start()
    with tenant("acme"):
        until(lambda: locks.waiters(NAME))
    assert in_thread(other.release)
    waiter.join(LONG)
    assert got == [other.slot]
    assert in_thread(acme.release)


def test_several_names() -> None:
    with tenant("acme"):
        leases = locks.acquire_all([NAME, "report:2"], ttl=LONG)
    assert leases is not None
    assert [in_thread(lease.release) for lease in leases] == [True, True]


def test_a_block_inside_a_block_of_another_tenant_has_a_lease_of_its_own() -> None:
    with (
        tenant("acme"), lock(NAME, ttl=LONG, reentrant=True) as outer,
        tenant("beta"), lock(NAME, ttl=LONG, reentrant=True) as inner,
    ):  # fmt: skip
        assert inner.token != outer.token


def test_a_note_that_the_renewal_thread_writes_is_the_tenants() -> None:
    store = stores["default"]
    with tenant("acme"):
        renewal.owe(NAME, Note("run 1", "ended", LONG), LONG, store)
        until(lambda: store.get_note("run 1") == "ended")
        store.set_note(Note("run 1", "", LONG))


def test_the_name_in_an_error_from_another_process_is_the_name() -> None:
    lease = taken_by("acme")
    with tenant("acme"), pytest.raises(LockNotAcquired) as refused, lock(NAME):
        pass
    assert pickle.loads(pickle.dumps(lease.name, protocol=0)).key == locks.list()[0].key
    error = pickle.loads(pickle.dumps(refused.value))
    assert (error.name, error.holder.key) == (NAME, locks.list()[0].key)
    assert json.loads(json.dumps(lease.name)) == NAME
    assert repr(lease.name) == repr(NAME)
    assert lease.release()
