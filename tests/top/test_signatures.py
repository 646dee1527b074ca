"""What users decorate may have annotations with names that only type checkers import."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from django_tasklock import lock
from django_tasklock.celery import LockedTask
from django_tasklock.tasks import locked
from django_tasklock.views import lock_view

SOURCE = "def work(video: Video, *, quality: Quality = 1) -> Result: return quality"
FUTURE = "from __future__ import annotations\n"


def locked_task(function: Callable[..., Any]) -> Any:
    app = Celery(set_as_current=False)
    return app.task(base=LockedTask, lock_name="video:{video}")(function)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(FUTURE + SOURCE, id="texts"),
        pytest.param(
            SOURCE,
            id="evaluated-later",
            marks=pytest.mark.skipif(
                sys.version_info < (3, 14),
                reason="before Python 3.14 the function itself could not be made",
            ),
        ),
    ],
)
@pytest.mark.parametrize(
    "decorate",
    [lock("video:{video}"), lock_view("video:{video}"), locked("video:{video}"), locked_task],
)
def test_their_values_are_not_needed(source: str, decorate: Callable[..., Any]) -> None:
    names: dict[str, Any] = {"__name__": __name__}
    exec(source, names)
    assert decorate(names["work"]).__name__ == "work"
