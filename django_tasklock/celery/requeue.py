"""Send a message back to its queue. The task's own retries are not used up.

Nothing is acknowledged before its successor is sent: a message that cannot be sent is rejected, so
that the broker delivers it again, or is tried again for as long as it takes.

If each message that a holder of its lock has refused came back when it likes, many messages of one
lock would either ask too often, or leave the lock free for seconds. So each has a turn, one step
after the last turn that was given, which a note of the store has. The note is a hint. The rule is
the "virtual scheduling" of the generic cell rate algorithm (ITU-T I.371), for a step that is
guessed from the holders that the messages have met.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from celery import Task
from celery.exceptions import Reject, SoftTimeLimitExceeded

from .._compat.celery import delays_natively, queue_of, raise_as_body, trouble_of_backend
from .._values.lock_info import LockInfo
from .._values.tokens import chance
from .._values.words import age, logger
from ..exceptions import RequeueFailed, StoreUnavailable
from .call import HEADER, MOMENT, REFUSED, SERIALIZER, whole_seconds
from .message import Message, tell
from .note import CameBack
from .options import TaskOptions

# The shortest delay of a message that waits for its lock, or for a store that does not answer.
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 15.0
# For how long a holder needs its lock, while nothing is known of that.
FIRST_NEED_SECONDS = 0.2
# Between two turns of a lock that is held for less: a few times what a delivery takes.
SHORTEST_STEP_SECONDS = 0.05
# The longest delay of a redelivery, while it waits for the first run of the same message.
LONGEST_REDELIVERY_DELAY_SECONDS = 60.0
# The longest delay, give or take a quarter, of a message that an operator's hold keeps from its
# run: a clear of the hold is seen within 15 seconds.
HOLD_CHECK_SECONDS = 10.0
# What Celery tells a run of the options of its call, and does not send again by itself. What the
# events and the worker show of the arguments is among it: the caller may hide some.
SAID = ("argsrepr", "kwargsrepr", "compression", "ignore_result")
# How the headers begin that RabbitMQ adds. A message that is sent anew must not have them: it would
# count as delivered, and RabbitMQ drops a message that seems to go round between two queues.
BROKERS_OWN = "x-delivery-count", "x-acquired-count", "x-death", "x-first-death-", "x-last-death-"


def wait_for_lock(
    message: Message, holder: LockInfo, error: Exception | None = None,
    *, longest: float = LONGEST_DELAY_SECONDS,
) -> NoReturn:  # fmt: skip
    """Requeue a message whose lock ``holder`` has, until its turn.

    ``error``: it is raised instead, ``lock_retry_for`` seconds after the message was first refused.
    ``longest``: the longest delay in seconds. Raises what `come_back` raises.
    """
    now, within = time.time(), message.task.lock_retry_for
    since = message.refused_since or now
    left = math.inf if error is None or within is None else since + within - now
    if error is not None and left <= 0:
        raise error
    waited = max(0.0, now - since)
    delay = _turn(message, message.name, message.named.slots, holder, waited, longest)
    _wait(message, "held", min(delay, left), [since, message.request.retries or 0])


def wait_freely(
    message: Message, holder: LockInfo, name: str, slots: int, why: str = "held"
) -> NoReturn:
    """Requeue a message for as long as it takes: an operator holds its lock, or a limit with this
    ``name`` is full. Until its turn, or to see whether the hold was cleared. ``why``: the reason
    for `task_not_run`. Raises what `come_back` raises."""
    if message.count(MOMENT):
        message.request.expires = None  # The calls that it has replaced rely on it.
    longest = LONGEST_DELAY_SECONDS if holder.held_by is None else HOLD_CHECK_SECONDS
    delay = _turn(message, name, slots, holder, 0.0, longest)
    # This is no time of ``lock_retry_for``: that begins anew. A follow-up stays one.
    _wait(message, why, delay, message.ours.get(REFUSED) if message.follows else None)


def wait_for_store(message: Message) -> NoReturn:
    """Requeue a message during an outage, with a delay that doubles each time. Raises what
    `come_back` raises."""
    delay = _doubled(message.count("tries")) * chance.uniform(0.75, 1.25)
    # Nobody knows whether what the message wrote last has arrived, so it is as one that was not
    # refused yet.
    _wait(message, "outage", delay, None)


def leave_worker(message: Message, delay: float = 0.0) -> NoReturn:
    """Requeue a message that has begun nothing, for about ``delay`` seconds: its worker shuts down,
    or it waits without a turn. Raises what `come_back` raises."""
    _wait(message, "held", delay * chance.uniform(0.75, 1.25), message.ours.get(REFUSED))


def _wait(message: Message, why: str, delay: float, refused: Any) -> NoReturn:
    copies = message.count("copy") or int(message.attempts.again)
    ours = {"tries": message.count("tries") + 1, "copy": copies, REFUSED: refused}
    _send(message, why, delay, ours)


def come_back(message: Message, delay: float | None, why: str = "redelivery") -> NoReturn:
    """Requeue a message another run of which may not have ended, for about ``delay`` seconds.

    None means the longest delay. When it is delivered again it is dropped if that run has ended
    well, and it runs if that one has died. ``why``: the reason for `task_not_run`.

    Raises `CameBack` when the message was sent, and `Reject` when the broker has to deliver it
    again. Raises `RequeueFailed` when it can never be sent, and the broker has it no more.
    """
    longest = LONGEST_REDELIVERY_DELAY_SECONDS
    # 0.0: of a lease that is over, whose key the cache still has.
    seconds = longest if delay is None else min(max(delay, FIRST_DELAY_SECONDS), longest)
    _send(message, why, seconds, {"copy": message.count("copy") + 1})


def retry_or_raise(message: Message, error: Exception) -> NoReturn:
    """Raise ``error``, which the body has not raised, or Celery's `Retry` if ``autoretry_for`` says
    so. Of a direct call the error is raised. Raises as `not_sent`, too."""
    try:
        if message.own:
            raise_as_body(message.task, error)
        raise error
    except Reject as lost:
        not_sent(message, lost)
        raise


def not_sent(message: Message, error: Exception) -> None:
    """Have the message delivered again: what was to go on with its run's work could not be sent,
    if ``error`` says that the broker did not take it. Celery would give the message up for a retry,
    and for a replacement call the task failed. Raises `Reject`, or what `come_back` raises."""
    cause = error.args[0] if isinstance(error, Reject) else error
    if not message.late or not isinstance(cause, not_taken(message.task)):
        return
    logger.warning("%s could not go on, and is to be delivered again: %s", message, cause)
    if not message.rejectable:
        come_back(message, FIRST_DELAY_SECONDS)
    _pause(FIRST_DELAY_SECONDS)
    raise Reject(cause, requeue=True) from cause


def not_taken(task: TaskOptions) -> tuple[type[Exception], ...]:
    """Return what is raised if the broker does not take a message. In a process that also waits for
    results, sending asks the result backend as well. A broker that is silent until the soft time
    limit has not taken it either."""
    return (task.OperationalError, SoftTimeLimitExceeded, *trouble_of_backend(task.backend))


def _send(message: Message, why: str, delay: float, ours: dict[str, Any]) -> NoReturn:
    """Requeue the message for ``delay`` seconds, with ``ours`` changed in its header."""
    task = message.task
    # A worker keeps a delayed message in memory. A broker with a visibility timeout (Redis, SQS)
    # delivers it again if that takes longer than the timeout.
    visibility = task.app.conf.broker_transport_options.get("visibility_timeout")
    delay = min(delay, float(visibility) / 2) if visibility else delay
    pause = _doubled(message.deliveries)
    while True:
        try:
            _publish(message, delay, ours)
        except Exception as error:
            logger.warning("%s could not be requeued: %s", message, error)
            # Arguments that cannot be serialized, for example: another try here would fail too.
            if not (message.rejectable or isinstance(error, not_taken(task))):
                tell(message, "given_up", "requeue_failed")
                raise RequeueFailed(str(task.name), message.id, str(error)) from error
            _pause(pause)
            if message.rejectable:
                tell(message, "requeued", why)
                raise Reject(error, requeue=True) from error
            pause = min(pause * 2, LONGEST_DELAY_SECONDS)
        else:
            tell(message, "requeued", why)
            raise CameBack(f"requeued for {delay:.3g} s")


def _publish(message: Message, delay: float, ours: dict[str, Any]) -> None:
    task, request = message.task, message.request
    given = request.headers or {}
    headers = {name: given[name] for name in given if not name.startswith(BROKERS_OWN)}
    merged = {**message.ours, **ours, "token": None, SERIALIZER: None}
    headers[HEADER] = {key: value for key, value in merged.items() if value}
    # Without a parent of its own, Celery would make the present run the parent of its own message.
    headers["parent_id"] = request.parent_id
    # What the call has said, and Celery does not say again.
    said = {name: request.__dict__.get(name) for name in SAID}
    said[SERIALIZER] = message.ours.get(SERIALIZER) or task.serializer
    sent = task.signature_from_request(
        request, tuple(message.args), dict(message.kwargs),
        queue=queue_of(task.app, request.delivery_info) if delays_natively(task.app) else None,
        countdown=delay, headers=headers, **said, add_to_parent=False,
    )  # fmt: skip
    # Not by the task's own `apply_async`: other classes have changed the arguments already. And one
    # that sends when the transaction commits would lose the message: its run ends with an
    # exception, which rolls back.
    Task.apply_async(task, sent.args, sent.kwargs, **whole_seconds(task, sent.options))


class Turns(NamedTuple):
    """The note of a lock's turns: what those that it has refused know of it."""

    # When the last turn is that was given, in seconds since the epoch.
    last: float = 0.0
    # Since when the holder that was met last has had the lock.
    since: float = 0.0
    # For how many seconds a holder needs the lock, as far as that is known.
    need: float = FIRST_NEED_SECONDS

    def needed(self, since: float, held: float, slots: int = 1) -> float:
        """Return the ``need`` when a holder is met that has had the lock ``since`` then: for
        ``held`` seconds, and it goes on.

        If it is another one than before, that one has ended by then, at the latest; with several
        permits nothing follows from that. And a long run says little about the next one: half of
        its need is forgotten.
        """
        need = self.need
        if since > self.since:
            ended = since - self.since if slots == 1 else need
            need = min(need, ended, max(need / 2, FIRST_NEED_SECONDS))
        return max(held, need)


def _turn(
    message: Message, name: str, slots: int, holder: LockInfo, waited: float, longest: float
) -> float:
    """Take the next turn of the lock ``name`` for a message. Returns the delay in seconds."""
    now, task, turn, ends_in = time.time(), message.task, None, None
    acquired = holder.acquired_at
    held = waited if acquired is None else max(0.0, age(acquired))
    since = 0.0 if acquired is None else acquired.timestamp()
    if holder.held_by is not None:
        held, ends_in = 0.0, holder.ttl
    elif holder.cooling:
        held, ends_in = held + (holder.ttl or 0.0), holder.ttl
    shortest = 1.0 if delays_natively(task.app) else SHORTEST_STEP_SECONDS

    def take(text: str | None) -> str | None:
        nonlocal turn
        before = Turns()
        with suppress(ValueError):  # Of a text that is no turn.
            before = Turns(*map(float, (text or "").split()[:3]))
        need = held if holder.cooling else before.needed(since, held, slots)
        turn = next_turn(
            before.last - now, held, need,
            ends_in=ends_in, slots=slots, longest=longest, shortest=shortest,
        )  # fmt: skip
        # With the task id: two that write the same text would both count as its writer.
        return None if turn is None else f"{now + turn!r} {since!r} {need!r} {message.id}"

    with suppress(StoreUnavailable):
        task.locks.store.update_note(f"turn {name}", take, longest)
    return delay_until(turn, waited, longest, chance.uniform(0.75, 1.25))


def next_turn(
    last: float, held: float, need: float, *, ends_in: float | None = None, slots: int = 1,
    longest: float = LONGEST_DELAY_SECONDS, shortest: float = SHORTEST_STEP_SECONDS,
) -> float | None:  # fmt: skip
    """Return in how many seconds the next turn of a lock is; None if it would be later than
    ``longest``: then there is none, and the message asks again.

    A lock that is held is expected to be held for as long again as it has been (Lindy's law), and a
    quarter longer, as what a holder needs is: a message that comes too early is refused once more.
    A lock that cools says when it ends, and how long that took; an operator's hold says when it
    ends. The turn is not before the holder has ended.

    Args, all in seconds:
        last: from now until the last turn that was given; 0 or less if that is past.
        held: how long the lock has been held.
        need: how long a holder needs it; of one that cools, how long it will have been taken.
        ends_in: how long the holder goes on to have the lock, if it says so.
        slots: the number of its permits.
        shortest: the shortest step.
    """
    remaining = 1.25 * held if ends_in is None else ends_in
    step = 1.25 * need if ends_in is None else need
    step = min(max(step / slots, shortest), longest)
    after = step + (last if 0.0 < last <= LONGEST_DELAY_SECONDS else 0.0)
    turn = max(FIRST_DELAY_SECONDS, min(remaining, longest), after)
    return turn if turn <= longest else None


def delay_until(turn: float | None, waited: float, longest: float, share: float) -> float:
    """Return the delay in seconds of a message with this turn, which has ``waited`` before.

    It waits for an eighth of that time, at least: it asks ever less often for a lock that is never
    free when it comes. It waits for ``longest`` at most; without a turn for about as long: for
    ``share`` times that.
    """
    return longest * share if turn is None else min(max(turn, waited / 8), longest)


def _doubled(tries: int) -> float:
    """Return the first delay, doubled with each try, up to the longest one. In seconds."""
    # A header may have any number: what is beyond the longest delay is not computed.
    return min(FIRST_DELAY_SECONDS * 2.0 ** min(tries, 10), LONGEST_DELAY_SECONDS)


def _pause(seconds: float) -> None:
    """Sleep. A time limit that comes meanwhile is for the body, and must not lose the message."""
    with suppress(SoftTimeLimitExceeded):
        time.sleep(seconds)
