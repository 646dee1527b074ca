"""The fixtures of the hard cases, for tasks of our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.hard_cases.conftest import (
    MakeStage,
    broker_server,
    lock_server,
    make_stage,
)
from tests.hard_cases.stage import Stage

__all__ = ["broker_server", "lock_server", "make_stage"]


@pytest.fixture
def on_stage(make_stage: MakeStage) -> Callable[..., Stage]:
    """``on_stage(broker, **options)``: a stage whose workers know the tasks of this package."""

    def make(broker: str = "redis", **options: Any) -> Stage:
        stage = make_stage(broker, **options)
        stage.conf["imports"] = ["tests.celery_tasks.queue.tasks"]
        return stage

    return make
