"""The public API as typed code uses it. Nothing runs this: type checkers read it.

``assert_type`` names each type as users can import it. A call that is wrong is one that both
checkers must refuse: what they do not refuse is an ignored error too many, which is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from celery import shared_task
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.tasks import task
from typing_extensions import Unpack, assert_type

from django_tasklock import (
    AcquireAllOptions,
    AcquireOptions,
    Event,
    Lease,
    LeaseLost,
    LockContext,
    LockInfo,
    LockNotAcquired,
    LockOptions,
    LockService,
    Owner,
    SkippingDecorator,
    StoreUnavailable,
    lock,
    locks,
    make_name,
)
from django_tasklock.caching import cached_once
from django_tasklock.celery import LockedTask, by, limit
from django_tasklock.guards import StatusGuard
from django_tasklock.leader import lead
from django_tasklock.stores.base import BaseStore
from django_tasklock.tasks import aenqueue_once, enqueue_once, locked
from django_tasklock.testing import (
    LocksInMemory,
    MemoryStore,
    assert_locked,
    assert_not_locked,
    held,
    locks_in_memory,
    outage,
)
from django_tasklock.views import lock_view


def blocks() -> None:
    assert_type(lock("a"), LockContext[Lease])
    with lock("a", ttl=60, wait=0, renew=False) as lease:
        assert_type(lease, Lease)
        lease.assert_held()
        assert_type(lease.remaining, float)
        assert_type(lease.held, bool)
        assert_type((lease.name, lease.token, lease.fence), tuple[str, str, int | None])
        assert_type((lease.ttl, lease.slot, lease.owner), tuple[float, int | None, Owner])
    with lock("a", wait=None, store="other", slots=3, reentrant=True) as lease:
        assert_type(lease.slot, int | None)
    with lock("a", max_hold=900, hold_at_least=1, cooldown=2.5, cooldown_after_error=3):
        pass
    with lock("a", until_commit=True), lock("b", until_commit="other") as lease:
        assert_type(lease, Lease)
    with lock(["seat:2", "seat:1"], wait=2) as leases:
        assert_type(leases, list[Lease])
    with lock(("seat:2", "seat:1")) as leases:
        assert_type(leases, list[Lease])


def shared_options(name: str, **options: Unpack[LockOptions]) -> LockContext[Lease]:
    return lock(name, **options)


@lock("report:{date}", ttl=600)
def report(date: str, *, fast: bool = False) -> int:
    return len(date)


@lock(["from:{source}", "to:{target}"])
def transfer(source: int, target: int) -> None: ...


@lock("report:{date}")
async def report_later(date: str) -> int:
    return len(date)


@lock("report:{date}", on_conflict="skip")
def report_once(date: str) -> int:
    return len(date)


@lock("report:{date}", on_conflict="skip")
async def report_once_later(date: str) -> int:
    return len(date)


async def decorated() -> None:
    assert_type(report("today", fast=True), int)
    assert_type(await report_later("today"), int)
    assert_type(report_once("today"), int | None)
    assert_type(await report_once_later("today"), int | None)
    assert_type(lock("a", on_conflict="skip"), SkippingDecorator)
    one: Callable[[str], Coroutine[Any, Any, int]] = report_later
    other: Callable[[str], Coroutine[Any, Any, int | None]] = report_once_later
    several: Callable[[int, int], None] = transfer
    print(one, other, several)


def service() -> None:
    lease = locks.acquire("a", ttl=60, wait=5, renew=True, max_hold=None, slots=2, hold_at_least=1)
    assert_type(lease, Lease | None)
    if lease is not None:
        assert_type(lease.extend(ttl=60), bool)
        assert_type(lease.release(), bool)
        assert_type(lease.detach(ttl=10), str)
        with lease as same:
            assert_type(same, Lease)
    assert_type(locks, LockService)
    assert_type(locks.acquire_all(["a", "b"], ttl=5, wait=None), list[Lease] | None)
    assert_type(locks.adopt("handle", renew=True), Lease | None)
    assert_type((locks.is_locked("a"), locks.count("a")), tuple[bool, int])
    assert_type(locks.get("a"), LockInfo | None)
    assert_type(locks.list("a", limit=5, offset=5), list[LockInfo])
    assert_type(locks.waiters("a"), list[Owner])
    assert_type(locks.clear("a", token=None), bool)
    assert_type(locks.hold("a", 60, by="me", reason="a repair"), LockInfo | None)
    assert_type(locks.history(name="a", task_id=None, limit=5), list[Event])
    assert_type(locks.using("other"), LockService)
    assert_type(locks.store, BaseStore)
    assert_type(make_name("video", 5), str)


def same_options(name: str, **options: Unpack[AcquireOptions]) -> Lease | None:
    return locks.acquire(name, **options)


def same_options_of_all(names: list[str], **options: Unpack[AcquireAllOptions]) -> None:
    locks.acquire_all(names, **options)


async def on_an_event_loop() -> None:
    async with lock("a", wait=None) as lease:
        assert_type(lease, Lease)
        assert_type(await lease.aextend(60), bool)
        assert_type(await lease.arelease(), bool)
    async with lock(["a", "b"]) as leases:
        assert_type(leases, list[Lease])
    assert_type(await locks.aacquire("a", ttl=60, slots=2), Lease | None)
    assert_type(await locks.aacquire_all(["a", "b"], wait=1), list[Lease] | None)
    assert_type(await locks.aget("a"), LockInfo | None)
    assert_type(await locks.alist("a"), list[LockInfo])
    assert_type((await locks.acount("a"), await locks.aclear("a")), tuple[int, bool])
    assert_type(await locks.ais_locked("a"), bool)
    assert_type(await locks.awaiters("a"), list[Owner])
    assert_type(await locks.ahistory("a"), list[Event])


def what_is_seen(info: LockInfo, event: Event) -> None:
    assert_type((info.name, info.ttl, info.token), tuple[str, float | None, str | None])
    assert_type((info.owner, info.cooling, info.slot), tuple[Owner, bool, int | None])
    assert_type((info.held_by, info.reason), tuple[str | None, str | None])
    assert_type((info.owner.host, info.owner.task_id), tuple[str | None, str | None])
    assert_type((event.name, event.owner, event.count), tuple[str, Owner, int])


def errors() -> None:
    try:
        with lock("a"):
            pass
    except LockNotAcquired as error:
        assert_type((error.name, error.holder), tuple[str, LockInfo | None])
    except LeaseLost as error:
        assert_type(error.name, str)
    except StoreUnavailable as error:
        assert_type(error.store, str)


guard = StatusGuard(
    "videos.Video", pk="video_id", field="status", source=["uploaded"], to="processing",
    done="ready", failed="failed", exclude=Q(hls_file__isnull=False), fence_field="lock_fence",
)  # fmt: skip


@shared_task(
    base=LockedTask, bind=True, acks_late=True, lock_name="video:{video_id}", lock_ttl=60,
    lock_wait=0, on_conflict="skip", guard=guard,
)  # fmt: skip
def process_video(self: LockedTask, video_id: int) -> None:
    assert_type(self.lease, Lease)
    self.lease.assert_held()


class SendMail(LockedTask):
    lock_name = by("user_id")
    on_conflict = "retry"
    lock_slots = 3
    lock_limits = (limit("mails", 15, hold_at_least=60), limit(by("user_id"), 2))
    unique_while = "queued"
    unique_name = "{user_id}:{kind}"


def decide(holder: LockInfo, user_id: int) -> str:
    return "skip" if holder.owner.task_id else "retry"


class Remind(LockedTask):
    on_conflict = decide
    on_loss = "stop"


limit("mails", "15")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@locked("video:{video_id}", ttl=60, guard=guard, hold_at_least=1, cooldown=2, unique_for=60)
def video_task(video_id: int, *, lease: Lease | None = None) -> str:
    assert lease
    return str(video_id)


async def enqueued() -> None:
    of_django = task()(video_task)
    assert_type(enqueue_once(of_django, 5).return_value, str)
    assert_type((await aenqueue_once(of_django, video_id=5)).return_value, str)


@lock_view("pay:{order_id}", wait=0, status=409, retry_after=True)
def pay(request: HttpRequest, order_id: int) -> HttpResponse:
    return HttpResponse(order_id)


def schedule(lease: Lease) -> int:
    return lease.fence or 0


def small_features() -> None:
    assert_type(video_task(5), str)
    assert_type(pay(HttpRequest(), 5), HttpResponse)
    assert_type(lead("scheduler", schedule, ttl=15), int)
    assert_type(lead("scheduler", schedule, stop=True), int)
    assert_type(cached_once("key", lambda: "value", 60, stale=5, wait=10), str)


@locks_in_memory()
def a_test(number: int) -> None:
    with held("a", by="other", task="videos.process") as info:
        assert_type(info, LockInfo)
        assert_type(assert_locked("a"), LockInfo)
    with outage("default"):
        assert_not_locked("a")
    with locks_in_memory() as tasklock:
        assert_type(tasklock, LocksInMemory)
        tasklock.clear()
    MemoryStore.clear_all()


def mistakes() -> None:
    lock("a", timeout=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    lock("a", ttl="3")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    lock("a", on_conflict="stop")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    lock(5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    lock("a").acquire()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    report(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    enqueue_once(task()(video_task), "5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    report_once("today", 5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    locks.acquire("a", timeout=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    locks.acquire("a", ttl="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    locks.acquire("a").release()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    with lock("a", on_conflict="skip"):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
