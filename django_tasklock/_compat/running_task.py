"""The Celery task that runs here, for code that does not import Celery.

Celery documents ``celery.current_task``, which is also a task that was called like a function, and
``app.current_worker_task``, which needs an app. Both read ``celery._state``, a module that Celery
calls internal: what they read is one stack for each thread or greenlet. Read in Celery 5.6 and 5.7.
"""

from __future__ import annotations

import sys


def running_task() -> tuple[str, str] | None:
    """Return the name and the id of the task that runs in this thread or greenlet; None if none
    does. A task that is called like a function is a part of the one that calls it."""
    # The module is there before its functions are, while another thread imports Celery.
    current = getattr(sys.modules.get("celery._state"), "get_current_worker_task", None)
    task = None if current is None else current()
    if task is None or task.request.id is None:
        return None
    return str(task.name), str(task.request.id)
