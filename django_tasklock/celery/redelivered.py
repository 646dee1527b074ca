"""Whether a message may have been delivered before.

A redelivery is marked by the broker or by `requeue_redelivery`. The first delivery is not, and may
start after its redelivery: a worker had it all the time, until its ETA or behind a long task, and
the broker did not know whether that worker lived. The note of another run shows that, and for an
old message the result.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

from celery import Celery

__all__ = ["is_marked", "is_old", "is_uuid", "visibility_timeout"]

UNACKNOWLEDGED_SECONDS = 1800.0
"""after which a broker may deliver a message again that nobody has acknowledged, by default: the
consumer timeout of RabbitMQ and the visibility timeout of SQS; that of Redis is twice as long"""
YOUNG_SECONDS = 1.0
"""no visibility timeout is shorter, and most messages are not older"""


def visibility_timeout(app: Celery) -> float | None:
    """The app's option in seconds; None if it has none."""
    seconds = app.conf.broker_transport_options.get("visibility_timeout")
    return float(seconds) if seconds else None


def is_marked(request: Any, ours: Mapping[str, Any]) -> bool:
    """Return whether the message of a request is marked as a redelivery.

    ``ours``: its header of this package.
    """
    return bool(ours.get("copy") or (request.delivery_info or {}).get("redelivered"))


def is_old(app: Celery, ours: Mapping[str, Any]) -> bool:
    """Return whether a message is so old that a broker may have delivered it again."""
    sent = ours.get("sent")
    age = time.time() - sent if isinstance(sent, int | float) else 0.0
    return age > YOUNG_SECONDS and age > (visibility_timeout(app) or UNACKNOWLEDGED_SECONDS)


def is_uuid(task_id: Any) -> bool:
    """Return whether Celery has made a task id, so that no other message has it."""
    try:
        return bool(str(uuid.UUID(task_id)) == task_id)
    except (AttributeError, TypeError, ValueError):
        return False
