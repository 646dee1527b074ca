"""Back to the queue, with the task's own retries untouched."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from kombu.serialization import registry  # type: ignore[attr-defined]

from ..exceptions import NotPutBack

if TYPE_CHECKING:
    from .delivery import Delivery

__all__ = ["ANYWAY", "HEADER", "put_back", "retry_later"]

logger = logging.getLogger("django_tasklock")

HEADER = "tasklock"
"""the message header that holds what a message must not forget on its way through the queue"""

ANYWAY = "tasklock_anyway"
"""the option of a call whose message is sent whatever is in the queue, and reserves nothing. An
option, for a mixin may defer the sending: it passes options on, and no context"""

FIRST_DELAY = 0.5
LONGEST_DELAY = 15.0
"""seconds between tries at a lock that is taken: the first, doubled, with jitter, the longest"""
LONGEST_COPY_DELAY = 60.0
"""seconds that a copy waits at most for the run it is a copy of"""


def put_back(
    delivery: Delivery, args: Sequence[Any], kwargs: Mapping[str, Any], ttl: float | None
) -> NoReturn:
    """Send a copy back until the lease that stands in its way, ``ttl`` seconds long, may be over.

    If that run ends well the copy is dropped then; if it dies the copy is what is left of it.
    """
    delay = min(ttl if ttl else LONGEST_COPY_DELAY, LONGEST_COPY_DELAY)
    ours = {**delivery.ours, "copy": delivery.looks + 1}
    # It reserves nothing: it may come to nothing, and no other may be refused for that.
    _send(delivery, args, kwargs, ours, delay, reserving=False)


def retry_later(
    delivery: Delivery,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    within: float | None = None,
    error: Exception | None = None,
    longest: float = LONGEST_DELAY,
    expires: bool = True,
) -> NoReturn:
    """Send a message back, each time for longer, for ``within`` seconds (None: for ever).

    After that raises ``error``. ``longest``: seconds between two tries, at most. ``expires``:
    whether it still does when its time comes.
    """
    now = time.time()
    since = float(delivery.ours.get("since") or now)
    tries = int(delivery.ours.get("tries") or 0)
    delay = min(FIRST_DELAY * 2 ** min(tries, 10), longest) * random.uniform(0.75, 1.25)
    if error is not None and within is not None:
        left = since + within - now
        if left <= 0:
            raise error
        delay = min(delay, left)
    ours = {**delivery.ours, "since": since, "tries": tries + 1}
    if delivery.copy:
        ours.setdefault("copy", 1)
    _send(delivery, args, kwargs, ours, delay, expires=expires)


def _send(
    delivery: Delivery,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    ours: dict[str, Any],
    delay: float,
    *,
    reserving: bool = True,
    expires: bool = True,
) -> NoReturn:
    task, request = delivery.task, delivery.request
    ours.pop("token", None)
    # As it was written: the task's own serializer may not be able to.
    written = registry.type_to_name.get(ours.pop("content", None))
    # A broker that times its messages out (Redis, SQS) delivers one again that waits for
    # longer than that in a worker's memory.
    visibility = task.app.conf.broker_transport_options.get("visibility_timeout")
    if visibility:
        delay = min(delay, float(visibility) / 2)
    headers = {**(request.headers or {}), HEADER: ours}
    pause = FIRST_DELAY
    while True:
        try:
            message = task.signature_from_request(
                request,
                tuple(args),
                dict(kwargs),
                countdown=delay,
                retries=request.retries,
                headers=headers,
            )
            options = {**message.options, "add_to_parent": False, ANYWAY: not reserving}
            if not expires:
                options["expires"] = None
            if written is not None:
                options["serializer"] = written
            task.send_again(message.args, message.kwargs, **options)
        except (task.OperationalError, *getattr(task.backend, "connection_errors", ())) as error:
            # Where a process also waits for results, to send is to ask the result backend, too.
            logger.warning("%s[%s] could not be put back: %s", task.name, delivery.id, error)
            time.sleep(pause)
            if task.acks_late:
                # The broker still has the message: it is the broker's to deliver again.
                raise Reject(error, requeue=True) from error
            pause = min(pause * 2, LONGEST_DELAY)
        except SoftTimeLimitExceeded:
            raise
        except Exception as error:
            # Arguments that cannot be written, say: no other try would do better from here.
            if not task.acks_late:
                raise NotPutBack(str(task.name), delivery.id, str(error)) from error
            logger.warning("%s[%s] goes back as it is: %s", task.name, delivery.id, error)
            time.sleep(pause)
            raise Reject(error, requeue=True) from error
        else:
            raise Ignore(f"put back for {delay:.3g} s")
