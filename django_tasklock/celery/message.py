"""A message: as a call sends it, and as its run sees it; and the note of its runs.

A broker delivers a message again if it does not know that the first delivery succeeded: the worker
was killed, the connection was cut, or the visibility timeout is over. A redelivery has the same
task id, and is marked by the broker, or by us if we requeued it.

The note counts the runs of one message. The acquire and the release of the lock write it, without
another round trip, for messages that the broker keeps until their run has ended. A start that stays
in the note is a run that died: an orderly end overwrites it, or takes it back if the message is to
run again.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, NamedTuple

from celery import Task
from celery.exceptions import Ignore, Retry
from celery.utils import uuid
from celery.utils.time import maybe_iso8601, maybe_make_aware
from django.db.models import Model
from django.utils.functional import cached_property
from kombu.exceptions import EncodeError

from .._compat.celery import delays_natively, leaves_by_itself, replacements
from .._engine.keeper import keeper_of
from .._engine.skipping import skipped
from .._values.lock_info import LockInfo
from .._values.owner import Owner, owner_record, recorded
from .._values.tokens import new_token
from ..exceptions import StoreUnavailable
from ..signals import task_not_run
from ..stores.base import Note
from .options import TaskOptions

# The option of a call that is sent whatever is in the queue. It is an option because a mixin may
# send later: mixins pass options on, but no context variables.
ANYWAY = "tasklock_anyway"

# The message header with what a message must keep when it is requeued. It is a wire format:
# ``sent``, ``token``, ``copy``, ``tries``, and the keys below.
HEADER = "tasklock"
# The handle of the lease under which the run goes on.
LEASE = "lease"
# The moment of a debounced call, in nanoseconds since the epoch.
MOMENT = "moment"
# When a holder of the lock first refused this try of the message, in seconds since the epoch, and
# the number of its retries. An outage that requeues the message removes it.
REFUSED = "refused"


# ------------------------------------------------------------------------ a call that is sent

# Sends a call, and returns its result.
Send = Callable[[], Any]


class Call:
    """A call of ``task`` that is being sent, with the options of its message."""

    def __init__(
        self, task: TaskOptions, args: Any, kwargs: Any, task_id: str | None, options: Any
    ) -> None:  # fmt: skip
        self.task, self.args, self.kwargs = task, args or (), kwargs or {}
        self.id: str = task_id or uuid()
        self.draws_id = task_id is None
        self.anyway: bool = options.pop(ANYWAY, False)
        self.options: dict[str, Any] = options

    @property
    def own(self) -> bool:
        """Whether a run sends its own message again, as in a retry."""
        return bool(self.options.get("retries")) or self.task.request.id == self.id

    @property
    def name(self) -> str:
        """The name of the lock. Raises `TypeError` or `ValueError` for wrong arguments."""
        return self.task.naming.name_of(self.args, self.kwargs)

    @property
    def slots(self) -> int:
        """How many calls with this name may run at once."""
        return self.task.naming.slots_of(self.args, self.kwargs)

    @property
    def eager(self) -> bool:
        """Whether the call runs here, at once."""
        return bool(self.task.app.conf.task_always_eager)

    def note(self, **ours: Any) -> None:
        """Write into our header of the message."""
        headers = self.options.get("headers") or {}
        self.options["headers"] = {**headers, HEADER: {**(headers.get(HEADER) or {}), **ours}}

    def publish(self) -> Any:
        """Have Celery send the message. Returns and raises what Celery does."""
        options = self.options
        if (options.get("countdown") or options.get("eta")) and not self.eager:
            options = whole_seconds(self.task, options)
        try:
            return Task.apply_async(self.task, self.args, self.kwargs, task_id=self.id, **options)
        except EncodeError as error:
            for name, value in self.task.naming.arguments_of(self.args, self.kwargs).items():
                if isinstance(value, Model):
                    what = f"the argument {name} is a model instance, which a message cannot hold"
                    raise EncodeError(f"task {self.task.name}: {what}. Send its key") from error
            raise

    def seconds_to_expiry(self) -> float:
        """Return the seconds until the message expires; infinity if it does not."""
        expires = self.options.get("expires", self.task.expires)
        return math.inf if expires is None else _until(self.task, expires)


def whole_seconds(task: TaskOptions, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a delayed message with a delay that the broker takes: RabbitMQ's quorum
    queues delay by whole seconds of at least one."""
    if delays_natively(task.app):
        seconds = math.ceil(waiting_seconds(task, options))
        options = {**options, "countdown": seconds, "eta": None}
    return options


def waiting_seconds(task: TaskOptions, options: Mapping[str, Any]) -> float:
    """Return the seconds until a message with these options may run."""
    eta = options.get("eta")
    return max(float(options.get("countdown") or 0), 0.0 if eta is None else _until(task, eta))


def _until(task: TaskOptions, moment: Any) -> float:
    """Return the seconds until an ETA or an expiry in any form that Celery takes."""
    if isinstance(moment, int | float):
        return float(moment)
    aware: datetime = maybe_make_aware(maybe_iso8601(moment), task.app.timezone)  # type: ignore[arg-type]
    return aware.astimezone(timezone.utc).timestamp() - time.time()


# ------------------------------------------------------------------------ the message of a run

# The header in which a quorum queue of RabbitMQ counts how often it has delivered a message.
DELIVERY_COUNT = "x-delivery-count"

# How long the note of an ended run is kept where a result backend also knows the result: longer
# than it takes to store a result.
END_NOTE_WITH_RESULT_SECONDS = 120.0
# How long the note is kept where nothing else knows that the run has ended: a redelivery may wait
# in a queue that long.
END_NOTE_SECONDS = 3600.0
# How long a start is counted that had no orderly end.
START_NOTE_SECONDS = 86400.0

# After how long an outage what is reserved has ended by itself.
RESERVED_SECONDS = 86400.0

# The text where the run ended in a retry or was replaced by another task: no result will come.
WENT_ON = '{"went_on": true}'


class Skip(Exception):
    """The call is not to run. ``reason`` is that of the marker, ``holder`` who has the lock."""

    def __init__(self, reason: Any, holder: Owner | None = None) -> None:
        super().__init__(reason)
        self.reason, self.holder = reason, holder


class CameBack(Ignore):
    """The message was requeued, and will run again."""


class RunNote(NamedTuple):
    """The content of a note."""

    # The number of starts without an orderly end; after the end, with the start that ended.
    starts: int = 0
    # The process in which the run has ended; None: it has not ended.
    ended_in: Owner | None = None
    went_on: bool = False

    @classmethod
    def read(cls, text: str | None) -> RunNote:
        """Return the note with this text. A text that is not a note counts as empty."""
        with suppress(ValueError, AttributeError, TypeError, RecursionError):
            record = json.loads(text or "{}")
            starts, ended = record.get("starts"), record.get("pid") is not None
            starts = starts if type(starts) is int and starts > 0 else 0
            ended_in = Owner.of_anybody(record) if ended else None
            return cls(starts, ended_in, record.get("went_on") is True)
        return cls()


class Message:
    """The message of one call of ``task``; or a call without a message, which has no ``id``.

    ``args`` and ``kwargs`` are those of the call. Those of the message name the lock and the row:
    another class of the task may have changed what the call gets.
    """

    def __init__(self, task: TaskOptions, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        request: Any = task.request
        self.task, self.request = task, request
        self.id: Any = request.id  # None for a direct call.
        # Whether Celery made the request for this very call. A call from inside a body, or from a
        # hook of the task after it, shows the request of the run around it.
        reached = "tasklock_run" in request.__dict__
        again = reached and request.tasklock_run is None and self._is_called_with(args, kwargs)
        self.own = not request.called_directly and (again or not reached)
        # Whether there is a message that can be requeued.
        self.queued = self.own and bool(request.id) and not request.is_eager
        # Whether the broker keeps the message until the run has ended.
        self.survives = self.queued and bool(task.acks_late)
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
        delivery = request.delivery_info or {}
        # Whether another run of this message may have started earlier.
        marked = self.ours.get("copy") or delivery.get("redelivered")
        self.redelivered = self.queued and bool(marked)
        count = headers.get(DELIVERY_COUNT)
        # How often a queue that counts deliveries has delivered the message before.
        self.deliveries = count if type(count) is int else 0
        # Whether the broker delivers the message again if it is rejected: it has the message still,
        # and its queue does not drop it for having delivered it too often.
        self.rejectable = bool(task.acks_late) and self.deliveries < task.lock_max_attempts
        # The lease's token, which the worker's main process has drawn.
        self.token: str | None = self.ours.get("token")
        sent = self.ours.get("sent")
        # When this try was sent, in seconds since the epoch by the sender's clock; None if the
        # sender does not know the task's class.
        self.sent = float(sent) if isinstance(sent, int | float) else None
        self.name = task.naming.name_of(args, kwargs)
        # What may be reserved for this message. Each is ended once: if the task id is used again, a
        # later reservation is another message's.
        self.reserved = task.reserved_keys(self.name) if self.queued else []
        self.slots = task.naming.slots_of(args, kwargs)
        # What is the same for two calls that exclude each other.
        self.lock = task.lock_store, self.name, self.slots > 1

    def __str__(self) -> str:
        return f"{self.task.name}[{self.id}]"

    def _is_called_with(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether this is the message's own call, which another class of the task may repeat."""
        request = self.request
        return [*args] == [*(request.args or ())] and dict(kwargs) == (request.kwargs or {})

    def count(self, what: str) -> int:
        """Return a number that is in the header of ours."""
        return int(self.ours.get(what) or 0)

    @property
    def refused_since(self) -> float | None:
        """When a holder of the lock first refused this try, in seconds since the epoch. None if it
        was not refused, or was requeued because of an outage after that."""
        match self.ours.get(REFUSED):
            # A retry that Celery sends for a dead child has the headers of the try before.
            case [int() | float() as since, retries] if retries == (self.request.retries or 0):
                return float(since)
        return None

    def is_by(self, holder: LockInfo) -> bool:
        """Return whether the lock's holder has this very task id."""
        return self.id is not None and holder.owner.task_id == recorded(self.id)

    def comes_back(self, error: BaseException) -> bool:
        """Return whether the message, or one in its place, is delivered again after this error."""
        if isinstance(error, Exception):
            return isinstance(error, Ignore | Retry) or bool(getattr(error, "requeue", False))
        return self.survives

    def end_reserved(self) -> None:
        """End what is reserved for the message, before its body reads anything: calls that were
        refused rely on it. Raises `StoreUnavailable`."""
        while self.reserved:
            self.task.locks.store.unreserve(self.reserved[-1], self.id)
            self.reserved.pop()

    def over(self) -> None:
        """End what is reserved for the message, which does not come back, as soon as the store
        answers. Raises nothing."""
        try:
            self.end_reserved()
        except StoreUnavailable:
            keeper = keeper_of(self.task.locks.store)
            for key in self.reserved:
                keeper.take_back(key, self.id, RESERVED_SECONDS)
            self.reserved = []

    # ---------------------------------------------------------------------------- notes of the run

    @cached_property
    def key(self) -> str:
        """The store's name for the note of this try of this sending of the task.

        A task id may be used again: when it was sent distinguishes one sending from another. A
        replacement has the id of the task that it replaces.
        """
        tries = f"{self.request.retries or 0}.{replacements(self.request)}"
        return self.task.locks.store.keyed_note(f"run {self.id}:{tries}:{self.sent or ''}")

    def note_of_start(self) -> Note | None:
        """Return the note that the acquire writes, so that a run that dies can be counted.

        None for a redelivery: the note of its earlier runs is read first.
        """
        return self.note_of(1) if self.survives and not self.redelivered else None

    def note_of(self, starts: int) -> Note:
        """Return the note after so many starts. After none its text is empty, which removes it."""
        # Its own text: if an acquire turns out to be in vain, nobody else's note is removed.
        text = f'{{"starts": {starts}, "by": "{new_token()}"}}' if starts else ""
        return Note(self.key, text, START_NOTE_SECONDS)

    def note_of_end(self, error: BaseException | None, starts: int) -> Note | None:
        """Return the note that the release of a run writes which ends with ``error``.

        ``starts``: the number that this run has written; 0 if none. None: the note stays.
        """
        if not self.survives:
            return None
        if error is None or isinstance(error, Skip):
            record = json.dumps({**owner_record(), "starts": starts})
            ttl = END_NOTE_WITH_RESULT_SECONDS if self.keeps_results else END_NOTE_SECONDS
            return Note(self.key, record, ttl)
        if isinstance(error, Retry | Ignore) and not isinstance(error, CameBack):
            # A message that this run sent continues its work (`Task.retry`, `replace`).
            return Note(self.key, WENT_ON, END_NOTE_SECONDS)
        # A body that ends its process counts as a death.
        return self.note_of(starts - 1) if starts and not leaves_by_itself(error) else None

    @property
    def keeps_results(self) -> bool:
        """Whether the result backend knows how a run of this message has ended."""
        return self.task.keeps_results and not self.request.ignore_result


def tell(call: Any, outcome: str, reason: str, task_id: Any = None) -> None:
    """Send `task_not_run`, if anybody listens. ``call``: a message, or a call that is sent.

    ``outcome`` and ``reason`` are of the closed sets that django_tasklock/signals.py has.
    """
    if task_not_run.receivers:
        task = call.task
        task_not_run.send_robust(
            type(task), task=str(task.name), task_id=task_id or call.id, name=call.name,
            store=task.lock_store, template=task.naming.template, outcome=outcome, reason=reason,
        )  # fmt: skip


def skip(message: Message, why: Skip) -> dict[str, Any]:
    """Tell that a call is skipped, and return its marker: chains, groups and chords go on."""
    task, told = message.task, ("skipped", why.reason)
    tell(message, *(("coalesced", "follow_up") if why.reason == "coalesced" else told))
    names = task.lock_store, message.name, str(task.name), message.id
    return skipped(*names, why.reason, why.holder)
