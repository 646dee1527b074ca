"""A run that is held up until its lease is over, mostly between its acquire and its claim."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from django_tasklock import Lease, LeaseLost, locks, signals
from django_tasklock.celery.locked_run import LockedRun
from django_tasklock.guards import StatusGuard
from django_tasklock.stores import stores
from django_tasklock.stores.base import Note
from django_tasklock.testing import outage
from tests.app.models import Job
from tests.mailroom import Mailroom, Message
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.django_db(transaction=True)

GUARD = StatusGuard(
    "app.Job", pk="job", source="queued", to="working", done="done", failed="failed",
    fence_field="lock_fence",
)  # fmt: skip
WITHOUT_FENCE = StatusGuard(
    "app.Job", pk="job", source="queued", to="working", done="done", failed="failed"
)
TTL = 0.3
"""of the first run's lease, which is over before the run goes on"""
SECONDS = 3.0
"""a ttl that lasts until the next line, also on a busy machine"""
Late = Meanwhile[tuple[str, Any]]


class HeldUp:
    """The first lease that is granted ends before its run claims the row, and before `go_on`."""

    def __init__(self) -> None:
        self.leases: list[Lease] = []
        self._goes_on = threading.Event()

    def __call__(self, lease: Lease, **kwargs: Any) -> None:
        self.leases.append(lease)
        if len(self.leases) == 1:
            until(lambda: not lease.held, "the end of the lease")
            assert self._goes_on.wait(PATIENCE)

    def takes_message(self, room: Mailroom, **delivered: bool) -> tuple[Message, Late]:
        """The next message, and its run, whose lease is over."""
        message = room.take()
        late: Late = Meanwhile(lambda: room.deliver(message, **delivered))
        until(lambda: self.leases, "the first lease")
        later_leases_last(room, message)
        until(lambda: not locks.is_locked(self.leases[0].name), "its end")
        return message, late

    def go_on(self) -> None:
        self._goes_on.set()


@pytest.fixture
def held_up() -> Iterator[HeldUp]:
    held_up = HeldUp()
    signals.lock_acquired.connect(held_up)
    yield held_up
    signals.lock_acquired.disconnect(held_up)
    held_up.go_on()


@pytest.fixture
def row() -> Job:
    row: Job = Job.objects.create()
    return row


def sent(room: Mailroom, row: Job, work: Callable[..., Any], **options: Any) -> Any:
    usual = {"acks_late": True, "lock_ttl": TTL, "lock_renew": False, "guard": GUARD}
    task = room.task(work, **usual | options)
    task.delay(row.pk)
    return task


def later_leases_last(room: Mailroom, message: Message) -> None:
    """Only the first lease of the message's task is over soon."""
    task: Any = room.app.tasks[message.task]
    task.lock_ttl = LONG


def late_run(room: Mailroom, leases: list[Lease]) -> tuple[Message, Late]:
    """The next message, and its run, whose lease, the first of these, is over."""
    message = room.take()
    late: Late = Meanwhile(lambda: room.deliver(message))
    until(lambda: leases, "the first lease")
    later_leases_last(room, message)
    until(lambda: not leases[0].held, "the end of the lease")
    return message, late


def outlives(late: Late, goes_on: threading.Event, lease: Lease) -> None:
    """What a redelivery does while the late run of its message comes to its end; then it dies."""
    assert lease.extend(LONG)
    goes_on.set()
    assert late.result()[0] == "IGNORED"
    raise SystemExit


def status(row: Job) -> str:
    row.refresh_from_db()
    return row.status


def test_the_redelivery_that_has_the_row_may_still_be_cut_short(
    room: Mailroom, row: Job, held_up: HeldUp
) -> None:
    """Its message would be dropped then, if the late run had told that it is done."""
    runs: list[int] = []

    def work(self: Any, job: Any) -> None:
        runs.append(job)
        if len(runs) == 1:
            held_up.go_on()
            assert late.result()[0] == "IGNORED"
            raise SystemExit

    sent(room, row, work)
    message, late = held_up.takes_message(room)
    with pytest.raises(SystemExit):
        room.deliver(message, redelivered=True)
    room.deliver(message, redelivered=True)
    room.work_off()
    assert (status(row), len(runs)) == ("done", 2)
    assert not locks.is_locked(f"job:{row.pk}")


def test_the_redelivery_has_gone_back_with_its_row(
    room: Mailroom, row: Job, held_up: HeldUp
) -> None:
    """The row waits for a run again, which the fence of the late one cannot claim."""
    runs: list[int] = []

    def work(self: Any, job: Any) -> None:
        runs.append(job)
        if len(runs) == 1:
            raise SystemExit

    sent(room, row, work)
    message, late = held_up.takes_message(room)
    with pytest.raises(SystemExit):
        room.deliver(message, redelivered=True)
    assert status(row) == "queued"
    held_up.go_on()
    assert late.result()[0] == "IGNORED"
    room.work_off()
    assert (status(row), len(runs)) == ("done", 2)


def test_the_redelivery_has_done_the_work(room: Mailroom, row: Job, held_up: HeldUp) -> None:
    runs: list[int] = []
    sent(room, row, lambda self, job: runs.append(job))
    message, late = held_up.takes_message(room)
    assert room.deliver(message, redelivered=True)[0] == "SUCCESS"
    held_up.go_on()
    assert late.result()[0] == "IGNORED"
    room.work_off()
    assert (status(row), len(runs)) == ("done", 1)


def test_a_start_that_goes_on_is_no_death(room: Mailroom, row: Job, held_up: HeldUp) -> None:
    """The message is a redelivery twice, and may die once."""

    def work(self: Any, job: Any) -> str:
        held_up.go_on()
        assert late.result()[0] == "IGNORED"
        return "done"

    sent(room, row, work, lock_max_attempts=1)
    message, late = held_up.takes_message(room, redelivered=True)
    assert room.deliver(message, redelivered=True) == ("SUCCESS", "done")
    assert status(row) == "done"


def test_another_message_has_the_row(room: Mailroom, row: Job, held_up: HeldUp) -> None:
    """As a run that claimed in time, and was held up then."""

    def work(self: Any, job: Any) -> str:
        held_up.go_on()
        with pytest.raises(LeaseLost):
            raise late.result()[1]
        return "done"

    task = sent(room, row, work)
    _, late = held_up.takes_message(room)
    task.apply_async((row.pk,))
    assert room.deliver(room.take()) == ("SUCCESS", "done")
    assert status(row) == "done"


def test_it_is_held_up_in_its_claim(room: Mailroom, row: Job) -> None:
    """When it has judged already that it is to run."""
    runs: list[int] = []
    claims: list[int | None] = []
    goes_on = threading.Event()

    class Slow(StatusGuard):
        def claim(self, pk: Any, fence: int | None = None) -> bool:
            claims.append(fence)
            if len(claims) == 1:
                assert goes_on.wait(PATIENCE)
            return super().claim(pk, fence)

    def work(self: Any, job: Any) -> None:
        runs.append(job)
        if len(runs) == 1:
            goes_on.set()
            assert late.result()[0] == "IGNORED"
            raise SystemExit

    slow = Slow(
        "app.Job", pk="job", source="queued", to="working", done="done", fence_field="lock_fence"
    )
    sent(room, row, work, guard=slow)
    message = room.take()
    late = Meanwhile(lambda: room.deliver(message))
    until(lambda: claims, "its claim")
    later_leases_last(room, message)
    until(lambda: not locks.is_locked(f"job:{row.pk}"), "the end of its lease")
    with pytest.raises(SystemExit):
        room.deliver(message, redelivered=True)
    room.deliver(message, redelivered=True)
    room.work_off()
    assert (status(row), len(runs)) == ("done", 2)


def test_its_body_comes_to_its_end_when_the_redelivery_has_gone_back(
    room: Mailroom, row: Job
) -> None:
    """The row refuses its result, and nobody is at work: it starts over."""
    leases: list[Lease] = []
    goes_on = threading.Event()

    def work(self: Any, job: Any) -> None:
        leases.append(self.lease)
        if len(leases) == 1:
            assert goes_on.wait(PATIENCE)
        elif len(leases) == 2:
            raise SystemExit

    sent(room, row, work)
    message, late = late_run(room, leases)
    with pytest.raises(SystemExit):
        room.deliver(message, redelivered=True)
    goes_on.set()
    assert late.result()[0] == "IGNORED"
    room.work_off()
    assert (status(row), len(leases)) == ("done", 3)


@pytest.mark.parametrize("guard", [None, WITHOUT_FENCE], ids=["no guard", "no fence"])
def test_its_body_comes_to_its_end_while_the_redelivery_works(
    room: Mailroom, row: Job, guard: StatusGuard | None
) -> None:
    """The redelivery's message would be acknowledged as well, and the redelivery may still die."""
    leases: list[Lease] = []
    goes_on = threading.Event()

    def work(self: Any, job: Any) -> None:
        leases.append(self.lease)
        if len(leases) == 1:
            assert goes_on.wait(PATIENCE)
        elif len(leases) == 2:
            outlives(late, goes_on, self.lease)

    sent(room, row, work, guard=guard, lock_ttl=SECONDS)
    message, late = late_run(room, leases)
    with pytest.raises(SystemExit):
        room.deliver(message, redelivered=True)
    room.work_off()
    assert len(leases) == 3
    assert guard is None or status(row) == "done"


def test_its_release_comes_while_the_redelivery_works(
    room: Mailroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The body had come to its end in time."""
    leases: list[Lease] = []
    goes_on = threading.Event()
    release = LockedRun.release

    def held_up(self: LockedRun, lease: Lease, note: Note | None) -> bool:
        if lease is leases[0]:
            assert goes_on.wait(PATIENCE)
        return release(self, lease, note)

    def work(self: Any, job: Any) -> None:
        leases.append(self.lease)
        if len(leases) == 2:
            outlives(late, goes_on, self.lease)

    monkeypatch.setattr(LockedRun, "release", held_up)
    room.task(work, acks_late=True, lock_ttl=SECONDS, lock_renew=False).delay(1)
    message, late = late_run(room, leases)
    with pytest.raises(SystemExit):
        room.deliver(message, redelivered=True)
    room.work_off()
    assert len(leases) == 3


def test_it_breaks_off_while_the_store_is_silent(room: Mailroom, row: Job) -> None:
    """Nobody knows who has the lock, so the message goes back."""
    leases: list[Lease] = []

    def work(self: Any, job: Any) -> None:
        leases.append(self.lease)
        if len(leases) == 1:
            until(lambda: not self.lease.held, "the end of the lease")
            silent.enter_context(outage())
            self.lease.assert_held()

    sent(room, row, work)
    message = room.take()
    with ExitStack() as silent:
        assert room.deliver(message)[0] == "IGNORED"
    later_leases_last(room, message)
    room.work_off()
    assert (status(row), len(leases)) == ("done", 2)


def test_the_store_has_its_lease_for_longer(
    room: Mailroom, row: Job, redis_server: RedisServer
) -> None:
    """As after an extension whose reply was lost. Nobody has to wait for the end of that lease."""

    def work(self: Any, job: Any) -> None:
        store: Any = stores["default"]
        key = store.key(self.lease.name)
        assert redis.Redis.from_url(redis_server.url).pexpire(key, int(LONG * 1000))
        until(lambda: not self.lease.held, "the end of the lease by its own clock")
        assert locks.is_locked(self.lease.name)
        self.lease.assert_held()

    sent(room, row, work, lock_ttl=SECONDS)
    assert room.deliver(room.take())[0] == "IGNORED"
    assert not locks.is_locked(f"job:{row.pk}")


def test_a_run_that_is_ended_late_reserves_nothing(room: Mailroom) -> None:
    """Its redelivery has ended the reservation, and would not do so again."""
    leases: list[Lease] = []
    goes_on = threading.Event()

    def work(self: Any, job: Any) -> None:
        leases.append(self.lease)
        if len(leases) == 1:
            assert goes_on.wait(PATIENCE)
            raise SystemExit

    options = {"acks_late": True, "lock_ttl": TTL, "lock_renew": False, "unique_while": "queued"}
    room.task(work, **options).delay(1)
    message = room.take()
    late: Late = Meanwhile(lambda: room.deliver(message))
    until(lambda: leases, "the first lease")
    later_leases_last(room, message)
    until(lambda: not locks.is_locked("job:1"), "the end of the lease")
    assert room.deliver(message, redelivered=True)[0] == "SUCCESS"
    goes_on.set()
    with pytest.raises(SystemExit):
        late.result()
    assert stores["default"].reservations() == []


def test_a_lease_that_is_held_proves_that_there_is_no_work(room: Mailroom, row: Job) -> None:
    Job.objects.update(status="done")
    sent(room, row, lambda self, job: None, lock_ttl=LONG)
    state, marker = room.deliver(room.take())
    assert (state, marker["reason"]) == ("SUCCESS", "invalid_state")
