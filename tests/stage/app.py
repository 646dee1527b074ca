"""The Celery app that the workers run: ``celery -A tests.stage.app worker``."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery, signals

from tests.stage import ledger

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.stage.settings")

app = Celery("stage", include=["tests.stage.tasks"])
app.conf.update(json.loads(os.environ.get("STAGE_CELERY", "{}")))


@signals.task_received.connect(weak=False)
def note_received(request: Any, **kwargs: Any) -> None:
    ledger.write("received", task_id=request.id, task=request.name)


@signals.task_prerun.connect(weak=False)
def note_prerun(task_id: str, task: Any, args: Any, **kwargs: Any) -> None:
    ledger.write("prerun", task_id=task_id, task=task.name, worker=task.request.hostname)
