"""Send a message back to its queue. The task's own retries are not used up."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, cast

from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from .._compat.celery import delays_natively, queue_of, serializer_of, trouble_of_backend
from .._values.chance import chance
from ..exceptions import RequeueFailed
from .base import TaskBase
from .delivery import Delivery
from .headers import ANYWAY, BROKERS_OWN, HEADER, REFUSED
from .outcomes import tell_not_run
from .redelivered import visibility_timeout
from .sending import Sending
from .turns import FIRST_RETRY_DELAY_SECONDS, LONGEST_RETRY_DELAY_SECONDS

__all__ = [
    "DeliverAgain",
    "deliver_again",
    "not_taken",
    "requeue_redelivery",
    "retry_later",
]

logger = logging.getLogger("django_tasklock")

LONGEST_REDELIVERY_DELAY_SECONDS = 60.0
"""the longest delay of a redelivery, while it waits for the first run of the same message"""


class DeliverAgain(Reject):
    """The broker has to deliver the message again: what was to go on with its work was not sent.

    A queue that counts deliveries would drop it in the end, so that its run sends it anew then.
    """


def requeue_redelivery(
    delivery: Delivery,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    delay: float | None,
    *,
    why: str = "redelivery",
) -> NoReturn:
    """Requeue a message whose first run may not have ended, for about ``delay`` seconds.

    None means the longest delay. When the message is delivered again it is dropped if the first
    run has ended well, and it runs if that one has died. ``why``: the reason for `task_not_run`.
    Raises `Ignore`, or what `retry_later` raises.
    """
    seconds = min(delay or LONGEST_REDELIVERY_DELAY_SECONDS, LONGEST_REDELIVERY_DELAY_SECONDS)
    ours = {**delivery.ours, "copy": delivery.redelivery_requeues + 1}
    # It reserves nothing: it may be dropped, and then no other call should have been refused.
    _send(delivery, args, kwargs, ours, seconds, why, reserving=False)


def retry_later(
    delivery: Delivery,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    within: float | None = None,
    error: Exception | None = None,
    expires: bool = True,
    turn: float | None = None,
) -> NoReturn:
    """Requeue a message that has to wait.

    ``turn``: it waits for its turn, in so many seconds, because the lock is held. None: it waits
    because of an outage, with a delay that doubles each time. ``within``: so many seconds after it
    was first refused (None: never) it raises ``error`` instead. ``expires``: whether the message
    keeps its expiry.

    Raises `Ignore` when the message was sent, `Reject` when the broker has to deliver it again,
    and `RequeueFailed` when it could not be sent and the broker does not have it any more.
    """
    now = time.time()
    since = now if delivery.refused_since is None else delivery.refused_since
    tries = int(delivery.ours.get("tries") or 0)
    delay = _doubled(tries) * chance.uniform(0.75, 1.25) if turn is None else turn
    if error is not None and within is not None:
        left = since + within - now
        if left <= 0:
            raise error
        delay = min(delay, left)
    ours = {**delivery.ours, "tries": tries + 1}
    # After an outage nobody knows whether what the message wrote last has arrived, so it is as one
    # that was not refused yet.
    ours.pop(REFUSED, None)
    if turn is not None:
        ours[REFUSED] = [since, delivery.request.retries or 0]
    if delivery.redelivered:
        ours.setdefault("copy", 1)
    why = "outage" if turn is None else "held"
    _send(delivery, args, kwargs, ours, delay, why, expires=expires)


def not_taken(task: TaskBase) -> tuple[type[Exception], ...]:
    """Return what is raised if the broker does not take a message. In a process that also waits for
    results, sending asks the result backend as well. A broker that is silent until the soft time
    limit has not taken it either."""
    return (task.OperationalError, SoftTimeLimitExceeded, *trouble_of_backend(task.backend))


def deliver_again(task: TaskBase, cause: Exception) -> NoReturn:
    """Raise `DeliverAgain`, so that the broker delivers the message of the present run again.

    What was to go on with the run's work could not be sent, because of ``cause``. Celery would give
    the message up for a retry, and for a replacement call the task failed.
    """
    logger.warning("%s[%s] could not go on: %s", task.name, task.request.id, cause)
    _pause(FIRST_RETRY_DELAY_SECONDS)
    raise DeliverAgain(cause, requeue=True) from cause


def _doubled(tries: int) -> float:
    """Return the first delay, doubled with each try, up to the longest one. In seconds."""
    # A header may have any number: what is beyond the longest delay is not computed.
    return min(FIRST_RETRY_DELAY_SECONDS * 2.0 ** min(tries, 10), LONGEST_RETRY_DELAY_SECONDS)


def _pause(seconds: float) -> None:
    """Sleep. A time limit that comes meanwhile is for the body, and must not lose the message."""
    with suppress(SoftTimeLimitExceeded):
        time.sleep(seconds)


def _send(
    delivery: Delivery,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    ours: dict[str, Any],
    delay: float,
    why: str,
    *,
    reserving: bool = True,
    expires: bool = True,
) -> NoReturn:
    task, request = delivery.task, delivery.request
    ours.pop("token", None)
    # The serializer of the message: the task's own may not be able to write these arguments.
    serializer = serializer_of(ours.pop("content", None))
    # A worker keeps a delayed message in memory. A broker with a visibility timeout (Redis, SQS)
    # delivers it again if that takes longer than the timeout.
    visibility = visibility_timeout(task.app)
    if visibility:
        delay = min(delay, visibility / 2)
    headers = {
        name: value for name, value in (request.headers or {}).items() if name not in BROKERS_OWN
    }
    # Without a parent of its own, Celery would make the present run the parent of its own message.
    headers |= {HEADER: ours, "parent_id": request.parent_id}
    rejectable, call = delivery.rejectable, (args, kwargs)
    pause = _doubled(delivery.deliveries)
    while True:
        try:
            queue = queue_of(task.app, request.delivery_info) if delays_natively(task.app) else None
            message = task.signature_from_request(
                request,
                tuple(args),
                dict(kwargs),
                queue=queue,
                countdown=delay,
                retries=request.retries,
                headers=headers,
                **delivery.followed_by,
            )
            options = {**message.options, "add_to_parent": False, ANYWAY: not reserving}
            # What the events and the worker show of the arguments: the caller may hide some.
            options |= {shown: request.get(shown) for shown in ("argsrepr", "kwargsrepr")}
            if not expires:
                options["expires"] = None
            if serializer is not None:
                options["serializer"] = serializer
            delivery.reserved = delivery.reserved or reserving
            cast("Sending", task).send_again(message.args, message.kwargs, **options)
        except not_taken(task) as error:
            logger.warning("%s[%s] could not be requeued: %s", task.name, delivery.id, error)
            _pause(pause)
            if rejectable:
                # The broker still has the message, and delivers it again.
                tell_not_run(task, "requeued", why, delivery.id, call)
                raise Reject(error, requeue=True) from error
            pause = min(pause * 2, LONGEST_RETRY_DELAY_SECONDS)
        except Exception as error:
            # For example arguments that cannot be serialized: another try here would fail too.
            if not rejectable:
                tell_not_run(task, "given_up", "requeue_failed", delivery.id, call)
                raise RequeueFailed(str(task.name), delivery.id, str(error)) from error
            logger.warning(
                "%s[%s] is rejected, so that the broker delivers it again: %s",
                task.name, delivery.id, error,
            )  # fmt: skip
            _pause(pause)
            tell_not_run(task, "requeued", why, delivery.id, call)
            raise Reject(error, requeue=True) from error
        else:
            tell_not_run(task, "requeued", why, delivery.id, call)
            raise Ignore(f"requeued for {delay:.3g} s")
