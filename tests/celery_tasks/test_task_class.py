"""What a locked task leaves of Celery's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

SOURCE = """
import warnings
warnings.simplefilter("error")
import django; django.setup()
from celery import Celery, Task
from django_tasklock.celery import LockedTask
app = Celery("x", broker="memory://", fixups=[])
def body(): pass
options = {"lock_name": "a", "unique_while": "queued", "on_conflict": "coalesce"}
first, second = (
    app.task(body, name=name, base=LockedTask, **options) for name in ("first", "second")
)
plain = app.task(body, name="plain")
app.conf.task_annotations = {"second": {"rate_limit": "10/s"}}
app.conf.task_acks_late = True
app.finalize()
print(Task.__dict__["__bound__"], LockedTask.__bound__, second.rate_limit, second.acks_late)
print(len({id(task.request_stack) for task in (first, second, plain)}))
"""


def test_the_tasks_of_a_process_do_not_share_what_is_each_ones_own(
    process_env: Callable[[], dict[str, str]],
) -> None:
    """Requests, annotations and the app's settings: a class that is made binds no base class."""
    done = subprocess.run(
        [sys.executable, "-c", SOURCE],
        env=process_env(),
        text=True,
        capture_output=True,
        timeout=180,
        check=False,
    )
    assert done.stdout.split() == ["False", "False", "10/s", "True", "3"], done.stderr
