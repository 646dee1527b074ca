"""The Celery app of a soak: ``celery -A tests.nightly.soak.app worker``."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from celery import Celery, signals
from kombu.transport.redis import Channel, QoS
from redis import exceptions

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.nightly.soak.settings")

app = Celery("soak", include=["tests.nightly.soak.tasks"])
app.conf.update(json.loads(os.environ["SOAK_CELERY"]))


def outlive_the_transport() -> None:
    """Kombu's transport for Redis ends a worker that has an unacknowledged message when its server
    is gone: it asks a connection that it has closed, to acknowledge it or to put it back. Here that
    is a lost connection, as with other transports; the message is delivered again later."""
    patched: Any = (QoS, Channel)
    restore, parameters = patched[0].restore_unacked, patched[1]._connparams

    def restore_unacked(self: Any, client: Any = None) -> None:
        try:
            restore(self, client)
        except exceptions.ConnectionError:
            self._delivered.clear()

    def connparams(self: Any, asynchronous: bool = False) -> Any:
        if getattr(self.connection, "client", None) is None:
            raise exceptions.ConnectionError("the channel is closed")
        return parameters(self, asynchronous)

    patched[0].restore_unacked, patched[1]._connparams = restore_unacked, connparams


if os.environ["SOAK_NAME"].startswith("worker1."):
    outlive_the_transport()


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
