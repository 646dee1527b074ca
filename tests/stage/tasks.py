"""The tasks of the stage: one scripted body under many options."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import redis
from celery import Task, signals
from celery.worker.request import Request
from django.apps import apps
from django.db import transaction

from django_tasklock import LockNotAcquired, StoreUnavailable, lock
from django_tasklock.celery import LockedTask, limit
from django_tasklock.guards import StatusGuard
from tests.stage import declared, early, ledger
from tests.stage.app import app
from tests.stage.scripted import Boom, Step, perform
from tests.tenants import tenant

LOCK_TTL_SECONDS = float(os.environ.get("STAGE_TTL", "30"))


def job_guard(*, to: str, source: tuple[str, ...] = ("new",)) -> StatusGuard:
    """A guard of the jobs' rows, which have the status ``to`` while they are worked on."""
    return StatusGuard(
        "stage.Job", pk="job", field="status", source=source, to=to, done="done",
        failed="failed", fence_field="lock_fence",
    )  # fmt: skip


GUARD = job_guard(to="running")


def tenant_of(job: int, **_: Any) -> str:
    """Of two tenants, each of which has every other job."""
    return f"tenant:{job % 2}"


def scripted(name: str, body: Callable[..., str] = perform, **options: Any) -> Any:
    """A task that locks ``job:<number>``, with these options."""
    usual = {"base": LockedTask, "acks_late": True, "lock_name": "job:{job}"}

    @app.task(bind=True, name=name, **{**usual, "lock_ttl": LOCK_TTL_SECONDS, **options})
    def task(self: Any, job: int, script: list[Step] | None = None) -> str:
        return body(self, job, script)

    return task


class KilledAfterRelease(LockedTask):
    """Its process dies once: the lock is released, the result is not stored yet."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = super().__call__(*args, **kwargs)
        if not ledger.here().entries("killed after release", task_id=self.request.id):
            ledger.write("killed after release", task_id=self.request.id)
            os.kill(os.getpid(), signal.SIGKILL)
        return result


class OwnRequest(Request):
    """A project's own class of requests, as Celery's guide has it."""

    def on_timeout(self, soft: bool, timeout: float) -> None:
        super().on_timeout(soft, timeout)
        ledger.write("own on_timeout", task_id=self.id)


class WithOwnRequest(Task):
    """A task that has only that."""

    Request: Any = OwnRequest


class OwnBefore(WithOwnRequest, LockedTask): ...


class OwnAfter(LockedTask, WithOwnRequest): ...


class OfTenant(Task):
    """Runs for the tenant that the message's header names."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with tenant((self.request.headers or {})["tenant"]):
            return super().__call__(*args, **kwargs)


class LockedOfTenant(OfTenant, LockedTask): ...


class Hooked(Task):
    """Whose message may end in a hook or in a mixin's call, before its body."""

    def before_start(self, *args: Any) -> None:
        early.pass_by(self, "before_start")
        vars(self.request)["prepared"] = object()  # Goes into no message.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        early.pass_by(self, "mixin")
        return super().__call__(*args, **kwargs)


class LockedHooked(Hooked, LockedTask): ...


@signals.task_prerun.connect(weak=False)
def receive_prerun(task: Any, **kwargs: Any) -> None:
    early.pass_by(task, "receiver")
    task.request.received = object()


def owner_of(job: int, script: Any = None) -> str:
    """The name of a lock that the job's row says."""
    return f"owner:{row_of(job).result}"


def its_own_owner(job: int, script: Any = None) -> str:
    """The name of a lock that the job's row says, and no other row: a run that has lost its lease
    to another job's would fail, as it should."""
    return f"{owner_of(job)}:{job}"


def row_of(job: int) -> Any:
    return apps.get_model(GUARD.label)._default_manager.get(pk=job)


class OnCommit(Task):
    """Sends when the transaction commits."""

    def apply_async(self, *args: Any, **options: Any) -> Any:
        transaction.on_commit(lambda: super(OnCommit, self).apply_async(*args, **options))


class WithRows(Task):
    """Sends a row as its key, and hands the body the row."""

    def apply_async(self, args: Any = (), *rest: Any, **options: Any) -> Any:
        row, *others = args
        return super().apply_async((getattr(row, "pk", row), *others), *rest, **options)

    def __call__(self, job: int, *args: Any) -> Any:
        return super().__call__(row_of(job), *args)


class Mixed(WithRows, OnCommit, LockedTask): ...


def with_row(task: Any, row: Any, script: list[Step] | None = None) -> str:
    return perform(task, row.pk, script)


def counting(task: Any, job: int, script: list[Step] | None = None) -> str:
    with redis.Redis.from_url(os.environ["STAGE_LOCKS"]) as counters:
        saw: Any = counters.get(f"counter:{job}")
    ledger.write("saw", job=job, saw=int(saw), task_id=task.request.id)
    return perform(task, job, script)


def saying_who(task: Any, job: int, script: list[Step] | None = None) -> str:
    perform(task, job, script)
    return str(task.request.id)


skip = scripted("skip", on_conflict="skip")
of_tenant = scripted("of_tenant", on_conflict="skip", base=LockedOfTenant)
guarded = scripted("guarded", on_conflict="skip", guard=GUARD)
retry = scripted("retry", on_conflict="retry", lock_retry_for=300, max_retries=2)
again = scripted(
    "again", on_conflict="coalesce", guard=job_guard(to="again", source=("new", "done"))
)
guarded_retry = scripted("guarded_retry", on_conflict="retry", lock_retry_for=300, guard=GUARD)
budget = scripted("budget", on_conflict="retry", lock_retry_for=3)
raising = scripted("raising", on_conflict="raise")
waiting = scripted("waiting", on_conflict="raise", lock_wait=60)
guarded_waiting = scripted("guarded_waiting", on_conflict="raise", lock_wait=60, guard=GUARD)
poison = scripted("poison", lock_max_attempts=3, guard=GUARD)
once = scripted("once", lock_max_attempts=1, guard=GUARD)
early_waiting = scripted("early_waiting", acks_late=False, lock_wait=None)
early_retry = scripted("early_retry", acks_late=False, on_conflict="retry")
coalesced = scripted("coalesced", on_conflict="coalesce")
joined = scripted("joined", saying_who, on_conflict="join")
debounced = scripted("debounced", debounce=0.4, debounce_max=0.6)
replaced = scripted("replaced", on_conflict="replace", lock_max_attempts=50)
autoretry = scripted("autoretry", guard=GUARD, autoretry_for=(Boom,), retry_kwargs=declared.RETRIES)
outage_raise = scripted("outage_raise", on_outage="raise")
outage_run = scripted("outage_run", on_outage="run", guard=GUARD)
outage_alone = scripted("outage_alone", on_outage="run")
own_before = scripted("own_before", base=OwnBefore, guard=GUARD)
own_after = scripted("own_after", base=OwnAfter, guard=GUARD)
own_before_dropped = scripted("own_before_dropped", base=OwnBefore, reject_on_worker_lost=False)
own_after_dropped = scripted("own_after_dropped", base=OwnAfter, reject_on_worker_lost=False)
killed_after = scripted("killed_after", base=KilledAfterRelease)
killed_after_guarded = scripted("killed_after_guarded", base=KilledAfterRelease, guard=GUARD)

AGAIN: Any = {"max_retries": 100, "countdown": 0.2}
autoretry_taken = scripted(
    "autoretry_taken", on_conflict="raise", autoretry_for=(LockNotAcquired,), retry_kwargs=AGAIN
)
autoretry_outage = scripted(
    "autoretry_outage", on_outage="raise", autoretry_for=(StoreUnavailable,), retry_kwargs=AGAIN
)
HOOKED: Any = {"base": LockedHooked, "unique_while": "queued", "lock_max_attempts": 3}
hooked = scripted("hooked", guard=GUARD, **HOOKED)
hooked_early = scripted("hooked_early", acks_late=False, lock_wait=60, **HOOKED)
hooked_coalesced = scripted("hooked_coalesced", base=LockedHooked, on_conflict="coalesce")
hooked_coalesced_early = scripted(
    "hooked_coalesced_early", base=LockedHooked, on_conflict="coalesce", acks_late=False
)
guarded_early = scripted("guarded_early", acks_late=False, guard=GUARD)
named_by_row = scripted("named_by_row", lock_name=owner_of, unique_while="unfinished")
named_by_row_early = scripted(
    "named_by_row_early", base=LockedHooked, lock_name=owner_of, unique_while="unfinished",
    acks_late=False,
)  # fmt: skip
ANY: Any = {
    "base": LockedHooked, "guard": GUARD, "on_conflict": "retry", "lock_retry_for": 300,
    "lock_max_attempts": 15, "acks_on_failure_or_timeout": False,
}  # fmt: skip
any_ = scripted("any", **ANY)
any_unique = scripted(
    "any_unique", unique_while="queued", autoretry_for=(Boom,), retry_kwargs=AGAIN, **ANY
)
any_named = scripted("any_named", lock_name=its_own_owner, **ANY)
any_waiting = scripted("any_waiting", lock_wait=None, **ANY)
ONE_WAITS: Any = {"unique_while": "queued", "on_conflict": "retry"}
queued = scripted("queued", lock_wait=20, **ONE_WAITS)
unfinished = scripted("unfinished", lock_wait=20, **ONE_WAITS | {"unique_while": "unfinished"})
mixed = scripted("mixed", with_row, base=Mixed, guard=GUARD, **ONE_WAITS)
flaky = scripted(
    "flaky", autoretry_for=(Boom,), default_retry_delay=1, retry_backoff=False, max_retries=None,
    **ONE_WAITS,
)  # fmt: skip
counts = scripted("counts", counting, on_conflict="coalesce")
watched = scripted("watched", on_conflict="run", lock_max_attempts=3)
limited = scripted("limited", lock_max_hold=2.0, lock_max_attempts=2, guard=GUARD)
if "STAGE_STOPS" in os.environ:  # A worker of gevent or eventlet does not start with it.
    stops = scripted("stops", on_loss="stop", guard=GUARD)
permitted = scripted("permitted", lock_name="tenant", lock_slots=2, on_conflict="retry")
cooled = scripted("cooled", lock_hold_at_least=3600)
LIMITS = [limit(tenant_of, 2), limit("partner", 3)]
of_tenants = scripted("of_tenants", lock_limits=LIMITS, lock_max_attempts=15, guard=GUARD)
of_tenants_early = scripted("of_tenants_early", acks_late=False, lock_limits=LIMITS)
WORKING = job_guard(to="working")  # Of these alone: the doctor knows whose row it is.
working = scripted("working", guard=WORKING)
working_early = scripted(
    "working_early", acks_late=False, reject_on_worker_lost=False, guard=WORKING
)
if not os.environ.get("STAGE_OLD"):  # A worker that has the code of the last release.
    new = scripted("new", unique_while="unfinished")
for name, way in declared.WAYS.items():
    options = {"on_conflict": "retry", "unique_while": "queued", "guard": GUARD, **way.task}
    options["base"] = globals()[options.get("base", "LockedTask")]
    scripted(f"declared: {name}", declared.body, **options)


@app.task(bind=True, name="plain", acks_late=True, reject_on_worker_lost=True)
def plain(self: Any, job: int, script: list[Step] | None = None) -> str:
    """The same body without a lock: what Celery does by itself."""
    return perform(self, job, script)


@app.task(bind=True, name="plain_with_a_lock")
def plain_with_a_lock(self: Any, job: int, script: list[Step] | None = None) -> Any:
    """A task of Celery's own class, which takes a lock in its body."""
    with lock(f"inside:{job}") as lease:
        perform(self, job, script)
        return lease.owner.task, lease.owner.task_id


@app.task(bind=True, base=LockedTask, name="itself", lock_name="job:{job}", lock_ttl=30)
def itself(self: Any, job: int, depth: int) -> list[Any]:
    """Calls itself directly, inside its own run; returns the fences it saw."""
    fences = [self.lease.fence]
    return fences + itself(job, depth - 1) if depth else fences


@app.task(name="collect")
def collect(value: Any, label: str) -> Any:
    """The next step of a chain, or a chord's body: notes what it was given."""
    ledger.write("collected", label=label, value=value)
    return value


@app.task(name="errback")
def errback(request: Any, error: Any, traceback: Any, label: str) -> None:
    """A link_error callback: notes what went wrong."""
    ledger.write("errback", label=label, error=type(error).__name__)


@app.task(name="own_attributes")
def own_attributes(task: str) -> list[str]:
    """What is set on the shared instance of a task."""
    return sorted(vars(app.tasks[task]))
