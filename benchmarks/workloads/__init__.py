"""The workloads, one module each. Each has ``run(bench) -> list[Table]``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..bench import Bench
    from ..tables import Table

__all__ = ["NAMES", "workload"]

NAMES = (
    "verbs",
    "acquire_release",
    "parts",
    "server_parts",
    "refused",
    "handoff",
    "handoff_once",
    "event_loop",
    "stores",
    "quorum",
    "renewal",
    "listing",
    "pages",
    "celery_task",
    "fresh_workers",
    "sending",
    "recovery",
    "killed_holder",
    "memory",
    "importing",
)


def workload(name: str) -> Callable[[Bench], list[Table]]:
    """The function that runs a workload."""
    run: Callable[[Bench], list[Table]] = import_module(f"{__name__}.{name}").run
    return run
