"""Send a message back to its queue. The task's own retries are not used up."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, cast

from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from .._compat.celery import serializer_of, trouble_of_backend
from .._values.chance import chance
from ..exceptions import RequeueFailed
from .base import TaskBase
from .delivery import Delivery
from .headers import ANYWAY, HEADER, REFUSED
from .outcomes import tell_not_run
from .redelivered import visibility_timeout
from .sending import Sending

__all__ = [
    "LONGEST_RETRY_DELAY_SECONDS",
    "deliver_again",
    "not_taken",
    "requeue_redelivery",
    "retry_later",
]

logger = logging.getLogger("django_tasklock")

FIRST_RETRY_DELAY_SECONDS = 0.5
"""the delay of the first retry for a lock that is held; doubled with each retry, with jitter"""
LONGEST_RETRY_DELAY_SECONDS = 15.0
LONGEST_REDELIVERY_DELAY_SECONDS = 60.0
"""the longest delay of a redelivery, while it waits for the first run of the same message"""


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
    longest: float = LONGEST_RETRY_DELAY_SECONDS,
    expires: bool = True,
    refused: bool = False,
) -> NoReturn:
    """Requeue a message that has to wait, with a delay that doubles each time.

    ``refused``: it waits because the lock is held, and not because of an outage. ``within``: so
    many seconds after it was first refused (None: never) it raises ``error`` instead. ``longest``:
    the longest delay in seconds. ``expires``: whether the message keeps its expiry.

    Raises `Ignore` when the message was sent, `Reject` when the broker has to deliver it again,
    and `RequeueFailed` when it could not be sent and the broker does not have it any more.
    """
    now = time.time()
    since = now if delivery.refused_since is None else delivery.refused_since
    tries = int(delivery.ours.get("tries") or 0)
    delay = min(FIRST_RETRY_DELAY_SECONDS * 2 ** min(tries, 10), longest)
    delay *= chance.uniform(0.75, 1.25)
    if error is not None and within is not None:
        left = since + within - now
        if left <= 0:
            raise error
        delay = min(delay, left)
    ours = {**delivery.ours, "tries": tries + 1}
    # After an outage nobody knows whether what the message wrote last has arrived, so it is as one
    # that was not refused yet.
    ours.pop(REFUSED, None)
    if refused:
        ours[REFUSED] = [since, delivery.request.retries or 0]
    if delivery.redelivered:
        ours.setdefault("copy", 1)
    _send(delivery, args, kwargs, ours, delay, "held" if refused else "outage", expires=expires)


def not_taken(task: TaskBase) -> tuple[type[Exception], ...]:
    """Return what is raised if the broker does not take a message. In a process that also waits for
    results, sending asks the result backend as well. A broker that is silent until the soft time
    limit has not taken it either."""
    return (task.OperationalError, SoftTimeLimitExceeded, *trouble_of_backend(task.backend))


def deliver_again(task: TaskBase, cause: Exception) -> NoReturn:
    """Raise `Reject`, so that the broker delivers the message of the present run again.

    What was to go on with the run's work could not be sent, because of ``cause``. Celery would give
    the message up for a retry, and for a replacement call the task failed.
    """
    logger.warning("%s[%s] could not go on: %s", task.name, task.request.id, cause)
    _pause(FIRST_RETRY_DELAY_SECONDS)
    raise Reject(cause, requeue=True) from cause


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
    headers = {**(request.headers or {}), HEADER: ours}
    pause, call = FIRST_RETRY_DELAY_SECONDS, (args, kwargs)
    while True:
        try:
            message = task.signature_from_request(
                request,
                tuple(args),
                dict(kwargs),
                countdown=delay,
                retries=request.retries,
                headers=headers,
                **delivery.followed_by,
            )
            options = {**message.options, "add_to_parent": False, ANYWAY: not reserving}
            if not expires:
                options["expires"] = None
            if serializer is not None:
                options["serializer"] = serializer
            delivery.reserved = delivery.reserved or reserving
            cast("Sending", task).send_again(message.args, message.kwargs, **options)
        except not_taken(task) as error:
            logger.warning("%s[%s] could not be requeued: %s", task.name, delivery.id, error)
            _pause(pause)
            if task.acks_late:
                # The broker still has the message, and delivers it again.
                tell_not_run(task, "requeued", why, delivery.id, call)
                raise Reject(error, requeue=True) from error
            pause = min(pause * 2, LONGEST_RETRY_DELAY_SECONDS)
        except Exception as error:
            # For example arguments that cannot be serialized: another try here would fail too.
            if not task.acks_late:
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
