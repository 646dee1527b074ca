"""The class of requests that a worker uses for a locked task: ours, with the project's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from celery import Celery, Task
from celery.worker.request import Request

from django_tasklock import InvalidLockConfig
from django_tasklock.celery import LockedTask
from django_tasklock.celery.request import LockedRequest


class OwnRequest(Request):
    """A project's own."""


NAME = f"{__name__}:OwnRequest"


class Plain(Task):
    """A task that has only a class of requests of its own."""

    Request: Any = OwnRequest


class Given(LockedTask):
    Request: Any = OwnRequest


class Named(LockedTask):
    Request: Any = NAME


class Heir(Named): ...


class Before(Plain, LockedTask): ...


class After(LockedTask, Plain): ...


@pytest.fixture
def app() -> Iterator[Any]:
    with Celery("requests", set_as_current=False, fixups=[]) as app:
        yield app


def body() -> None:
    """What the tasks here do."""


def request_class(app: Any, **options: Any) -> Any:
    """The class that a worker makes this task's requests of."""
    task = app.task(body, name="body", shared=False, lazy=False, **options)
    for _ in range(2):  # Once more when it has connected to the broker again.
        task.start_strategy(app, MagicMock())
    return task.Request


@pytest.mark.parametrize(
    "options",
    [
        *({"base": base} for base in (Given, Named, Heir, Before, After)),
        {"base": LockedTask, "Request": OwnRequest},
        {"base": LockedTask, "Request": NAME},
    ],
)
def test_the_projects_own_is_combined_with_ours(app: Any, options: dict[str, Any]) -> None:
    made = request_class(app, **options)
    order = made.__mro__
    assert order.index(LockedRequest) < order.index(OwnRequest)
    assert made.__name__ == "OwnRequest"


def test_that_of_task_annotations_is_combined_with_ours(app: Any) -> None:
    app.conf.task_annotations = {"body": {"Request": OwnRequest}}
    assert {LockedRequest, OwnRequest} <= {*request_class(app, base=LockedTask).__mro__}


@pytest.mark.parametrize("given", [object, Mock(), f"{__name__}:Plain"])
def test_what_is_no_request_class_is_refused_with_what_to_write(app: Any, given: Any) -> None:
    with pytest.raises(InvalidLockConfig, match=r"task body: Request is a subclass of celery"):
        request_class(app, base=LockedTask, Request=given)


def test_a_process_that_only_sends_imports_nothing_of_the_worker(
    process_env: Callable[[], dict[str, str]],
) -> None:
    source = """
import sys, django; django.setup()
from celery import Celery
from django_tasklock.celery import LockedTask
app = Celery("x", broker="memory://", fixups=[])
@app.task(base=LockedTask)
def sent(): pass
sent.delay()
print([name for name in sys.modules if name.startswith(("celery.worker", "celery.concurrency"))])
"""
    done = subprocess.run(
        [sys.executable, "-c", source],
        env=process_env(),
        text=True,
        capture_output=True,
        timeout=180,
        check=False,
    )
    assert done.stdout.strip() == "[]", done.stderr
