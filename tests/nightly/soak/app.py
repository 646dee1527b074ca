"""The Celery app of a soak: ``celery -A tests.nightly.soak.app worker``."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from celery import Celery, signals

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.nightly.soak.settings")

app = Celery("soak", include=["tests.nightly.soak.tasks"])
app.conf.update(json.loads(os.environ["SOAK_CELERY"]))


@signals.after_setup_logger.connect(weak=False)
def hear(logger: logging.Logger, **kwargs: Any) -> None:
    """Celery has taken the handlers of the settings away."""
    from tests.nightly.soak.book import Heard

    logger.addHandler(Heard())


@signals.task_received.connect(weak=False)
def note_received(request: Any, **kwargs: Any) -> None:
    from tests.nightly.soak.book import book

    again = bool(request.delivery_info.get("redelivered"))
    book().write("received", task_id=request.id, again=again)


@signals.task_success.connect(weak=False)
def note_skipped(sender: Any, result: Any, **kwargs: Any) -> None:
    from tests.nightly.soak.book import book

    if isinstance(result, dict) and result.get("status") == "skipped":
        book().write("skipped", task_id=sender.request.id, reason=result["reason"])
