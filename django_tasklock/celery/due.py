"""When a message is due, and when it expires, by the options with which it is sent."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from celery.utils.time import maybe_iso8601, maybe_make_aware

from .base import TaskBase

__all__ = ["seconds_to_expiry", "seconds_until", "waiting_seconds"]


def waiting_seconds(task: TaskBase, options: Mapping[str, Any]) -> float:
    """Return the seconds until a message with these options may run."""
    wait = float(options.get("countdown") or 0)
    if options.get("eta") is not None:
        wait = max(wait, seconds_until(task, options["eta"]))
    return max(wait, 0.0)


def seconds_to_expiry(task: TaskBase, options: Mapping[str, Any]) -> float:
    """Return the seconds until a message with these options expires; infinity if it does not."""
    expires = options.get("expires", getattr(task, "expires", None))
    return math.inf if expires is None else seconds_until(task, expires)


def seconds_until(task: TaskBase, moment: Any) -> float:
    """Return the seconds until an ETA or an expiry in any form that Celery takes."""
    if isinstance(moment, int | float):
        return float(moment)
    when: Any = maybe_iso8601(moment)
    aware: datetime = maybe_make_aware(when, task.app.timezone)
    return aware.astimezone(timezone.utc).timestamp() - time.time()
