"""Apps of Celery's that a test makes, which must end with it: the doctor looks at all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import _state

from tests.inside import active_apps

__all__ = ["apps_end", "disconnect", "forget"]


def forget(app: Any) -> None:
    """Close an app, and have nobody find its tasks: a test's error may keep it for minutes."""
    app._tasks.clear()
    app._pending.clear()
    app.close()


def disconnect(app: Any) -> None:
    """Close its connections to its broker. Not for good: kombu has one pool for all who use this
    broker, such as other tests."""
    for pool in (app.amqp.producer_pool, app.pool):
        pool.resize(pool.limit, reset=True)


@contextmanager
def apps_end() -> Iterator[None]:
    """Forget the apps that are made meanwhile, but for those of whole sites, which are modules.

    One that is closed gets no later ``@shared_task``. So it does not stay the current app, or the
    default one, where each is looked for: in a Django project Celery makes the first app its
    default.
    """
    celerys: Any = _state
    before, current, default = active_apps(), celerys._tls.current_app, celerys.default_app
    yield
    # Celery's fallback is made at the first use, and stays the current app of all later tests.
    before.append(celerys.default_app)
    for app in active_apps():
        if not app._fixups and not any(app is each for each in before):
            forget(app)
    if celerys._tls.current_app not in active_apps():
        celerys._set_current_app(current)
    if celerys.default_app not in active_apps():
        celerys.set_default_app(default)
