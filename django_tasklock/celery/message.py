"""The message of a call, as its run and the worker's main process see it; and what is told of a
call that does not run.

A redelivery has the same task id as the delivery before, and is marked by the broker, or by us if
we requeued it.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timezone
from typing import Any

from celery import states
from celery.exceptions import Ignore, Retry, SoftTimeLimitExceeded
from celery.utils.time import maybe_iso8601
from django.utils.functional import cached_property

from .._compat.celery import is_broadcast
from .._engine.history import note_event, skipped
from .._engine.keeper import keeper_of
from .._values.lock_info import LockInfo
from .._values.owner import owner_record, recorded
from .._values.tokens import Handle, read_handle, token_from
from .._values.words import logger, printable
from ..exceptions import InvalidLockConfig, StoreUnavailable
from ..signals import task_not_run
from .call import BESIDE, HEADER, LEASE, REFUSED, RESERVED, is_of, named_by
from .note import Attempts, Skip
from .options import Limit, Names, TaskOptions


class Message:
    """The message of one call of ``task``; or a call without a message.

    ``request`` is Celery's. ``args`` and ``kwargs`` are those of the call, which is just beginning.
    Those of the message name the row: another class of the task may have changed what the call
    gets. The message itself names the lock.
    """

    def __init__(self, task: TaskOptions, request: Any, args: Any, kwargs: Any) -> None:
        self.task, self.request = task, request
        self.id: Any = request.id  # None for a direct call outside a run; inside one the run's.
        # Celery makes the request for the message's own call, which another class of the task may
        # repeat. A call from inside a body, or from a hook of the task after it, shows the request
        # of the run around it.
        reached = "tasklock_run" in request.__dict__
        again = reached and request.tasklock_run is None and is_of(request, args, kwargs)
        # Whether Celery made the request for this very call: it is no direct call of the task.
        self.own = not request.called_directly and (again or not reached)
        # Whether there is a message that can be requeued: the call is not eager.
        self.queued = self.own and not request.is_eager and bool(request.id)
        # Whether the broker keeps the message until its run has ended, and delivers it again if its
        # process dies.
        self.late = self.queued and bool(task.acks_late)
        headers: dict[str, Any] = dict(request.headers or {})
        ours = headers.pop(HEADER, None) or request.__dict__.get(HEADER)  # If it is called again.
        if self.own:
            request.tasklock_run = None
            # Ours is no header of the next message. And never None: Celery would take all
            # attributes of the request for its headers.
            request.headers = headers
            args, kwargs = request.args or (), request.kwargs or {}
        self.args, self.kwargs = args, kwargs
        self.ours: dict[str, Any] = ours if self.own and isinstance(ours, dict) else {}
        # How often a quorum queue of RabbitMQ has delivered the message before.
        self.deliveries: int = headers.get("x-delivery-count") or 0
        # Whether the broker delivers the message again if it is rejected: it has the message still,
        # and its queue does not drop it for having delivered it too often.
        self.rejectable = self.late and self.deliveries < task.lock_max_attempts
        marked = self.ours.get("copy") or (request.delivery_info or {}).get("redelivered")
        again = self.queued and bool(marked)
        self.attempts = Attempts(task.locks, request, self.ours, counts=self.late, again=again)

    def __str__(self) -> str:
        return f"{self.task.name}[{self.id}]"

    @cached_property
    def named(self) -> Names:
        """What it locks and reserves: what the message carries; of a call without, what its
        arguments give now. Raises as `Naming.named` does."""
        return named_by(self.task, self.ours) or self.task.naming.named(self.args, self.kwargs)

    @property
    def name(self) -> str:
        """The lock's name. Raises as `named`."""
        return self.named.name

    @property
    def permits(self) -> list[tuple[Limit, str, str]]:
        """Each limit of the task, with its name for this call, and the token of the permit, which
        the worker's main process knows too. Raises as `named`."""
        limits = zip(self.task.lock_limits, self.named.limits, strict=True)
        token = self.attempts.token
        return [(limit, name, token_from(token, at)) for at, (limit, name) in enumerate(limits)]

    @cached_property
    def reserved(self) -> dict[str, str]:
        """The keys of the store that may be reserved for this message, and their texts. Each is
        ended once: if the task id is used again, a later reservation is another message's."""
        if not self.queued:
            return {}
        key = self.ours.get(RESERVED)
        own = {key: self.id} if isinstance(key, str) else {}
        return {**own, **self.task.conflict.reserves(self)}

    @cached_property
    def handle(self) -> Handle | None:
        """That of the lease which the message brings; None if there is none, or it is wrong."""
        if (handle := self.ours.get(LEASE)) is not None:
            with suppress(TypeError, ValueError):
                return read_handle(handle)
        return None

    def refuse_broadcast(self) -> None:
        """Raise `InvalidLockConfig` for a message that all workers got."""
        if self.queued and is_broadcast(self.task.app, self.request.delivery_info):
            raise InvalidLockConfig(
                f"task {self.task.name}: its message came by a broadcast (fanout) queue, which "
                "gives all workers one task id, and a LockedTask runs once for each task id. Make "
                "it a plain task, and use lock(...) in its body"
            )

    def count(self, what: str) -> int:
        """Return a whole number that is in the header of ours; 0 if there is none."""
        number = self.ours.get(what)
        return number if type(number) is int else 0

    @property
    def refused_since(self) -> float | None:
        """When a holder of the lock first refused this try, in seconds since the epoch. None if it
        was not refused, or was requeued because of an outage after that."""
        since, retries = self.ours.get(REFUSED) or (None, 0)
        # A retry that Celery sends for a dead child has the headers of the try before.
        return since if retries == (self.request.retries or 0) else None

    @property
    def follows(self) -> bool:
        """Whether others were skipped because this message waits, and rely on its run."""
        return self.task.conflict.has_follow_up and self.refused_since is not None

    def is_by(self, holder: LockInfo) -> bool:
        """Return whether the lock's holder has this very task id."""
        return self.id is not None and holder.owner.task_id == recorded(self.id)

    def comes_back(self, error: BaseException) -> bool:
        """Return whether the message, or one in its place, is delivered again after this error."""
        if isinstance(error, Exception):
            return isinstance(error, Ignore | Retry) or bool(getattr(error, "requeue", False))
        return self.late

    def end_reserved(self) -> bool:
        """End what is reserved for the message, before its body reads anything: calls that were
        refused rely on it. Returns whether anything was. Raises `StoreUnavailable`."""
        ended = False
        for key in list(self.reserved):
            ended |= self.task.locks.store.unreserve(key, self.reserved[key])
            del self.reserved[key]
        return ended

    def over(self) -> None:
        """End what is reserved for the message, which does not come back, as soon as the store
        answers. Raises nothing."""
        try:
            self.end_reserved()
        except StoreUnavailable:
            while self.reserved:
                # After a day's outage what is reserved has ended by itself.
                keeper_of(self.task.locks.store).unreserve_later(*self.reserved.popitem(), 86400.0)

    @property
    def keeps_results(self) -> bool:
        """Whether the result backend knows how a run of this message has ended."""
        return self.task.keeps_results and not (self.request.ignore_result or self.ours.get(BESIDE))


def state_of(task: TaskOptions, task_id: str, sent: float | None = None) -> str | None:
    """Return the state that the result backend has of a message; None if it cannot know it, and
    "SILENT" if it does not answer: the lock store may still know enough.

    A result that is older than the message, which was ``sent`` at that moment, belongs to an
    earlier use of the task id.
    """
    if not task.keeps_results:
        return None
    if (meta := meta_of(task, task_id)) is None:
        return "SILENT"
    if sent is not None and was_before(meta.get("date_done"), sent):
        # Most backends never overwrite a success, so the later result may be missing.
        return None if meta["status"] == states.SUCCESS else states.PENDING
    return str(meta["status"])


def meta_of(task: TaskOptions, task_id: str) -> dict[str, Any] | None:
    """Return what Celery calls the meta of a message: its ``status`` and its ``result``, among
    others. None if the result backend does not answer, which is logged."""
    try:
        return dict(task.backend.get_task_meta(task_id))
    except SoftTimeLimitExceeded:
        raise
    except Exception as silent:
        what = f"{task.name}[{printable(task_id)}]"
        logger.warning("the result backend does not say whether %s has run: %s", what, silent)
        return None


def was_before(done: Any, moment: float) -> bool:
    """Return whether a result was stored before a moment, in seconds since the epoch."""
    with suppress(AttributeError, TypeError, ValueError, OverflowError):
        when: Any = maybe_iso8601(done)
        # A backend that stores no time zone means UTC, or local time.
        zones = (timezone.utc, None) if when.tzinfo is None else (when.tzinfo,)
        return all(when.replace(tzinfo=zone).timestamp() < moment for zone in zones)
    return False


def tell(
    call: Any, outcome: str, reason: str, task_id: Any = None, holder: LockInfo | None = None
) -> None:
    """Send `task_not_run`. ``call``: a message, or a call that is sent. One that is given up is an
    event of the history, too, with the ``holder`` of its lock.

    ``outcome`` and ``reason`` are of the closed sets that django_tasklock/signals.py has.
    """
    task = call.task
    if outcome == "given_up":
        owner = owner_record(str(task.name), call.id)
        note_event(task.locks.store, "given up", call.name, owner, holder=holder, reason=reason)
    task_not_run.send_robust(
        type(task), task=str(task.name), task_id=task_id or call.id, name=call.name,
        store=task.lock_store, template=task.naming.template, outcome=outcome, reason=reason,
    )  # fmt: skip


def skip(message: Message, why: Skip) -> Any:
    """Tell that a call is skipped, and return its marker, or what the run returned that it has
    joined: chains, groups and chords go on."""
    if why.joined is not None:
        task_id, value = why.joined
        logger.info("%s returns what %s does, lock %s", message, printable(task_id), message.name)
        tell(message, "joined", "result")
        return value
    task, coalesced = message.task, why.reason == "coalesced"
    outcome, reason = ("coalesced", "follow_up") if coalesced else ("skipped", why.reason)
    tell(message, outcome, reason)
    parent = message.queued and not coalesced and message.request.parent_id
    if parent and why.holder and why.holder.task_id == recorded(parent):
        logger.warning(
            "%s is skipped: the run that sent it holds the lock %s, and nothing goes on with it. "
            'Use on_conflict="retry" or "coalesce"', message, message.name,
        )  # fmt: skip
    owner = owner_record(str(task.name), message.id)
    return skipped(task.locks.store, message.name, owner, why.reason, why.holder)
