"""The clock of leases, the name of who acts, and what a function may look like."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
from celery import Celery
from freezegun import freeze_time

from django_tasklock import lock
from django_tasklock._values import clock
from django_tasklock._values.owner import owner_record, strand_name
from django_tasklock.celery import LockedTask
from django_tasklock.tasks import locked
from django_tasklock.views import lock_view


@pytest.fixture(params=["here", "without CLOCK_BOOTTIME"])
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The clock of this system, and that of one such as macOS."""
    if request.param == "here":
        return clock
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    name = "clock_without_boottime"
    spec: Any = importlib.util.spec_from_file_location(name, clock.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # freezegun looks for the functions to replace in all modules that are imported.
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_the_clock_goes_on_while_time_is_frozen(module: ModuleType) -> None:
    before = module.now()
    with freeze_time("2030-06-01") as frozen:
        frozen.tick(timedelta(hours=1))
        then = module.now()
        assert 0 < then - before < 600
        while module.now() == then:
            pass


def test_threads_of_one_name_are_told_apart() -> None:
    together, names = threading.Barrier(8), []

    def work() -> None:
        names.append(owner_record()["thread"])
        together.wait(20)

    threads = [threading.Thread(target=work, name="worker-of-one-name") for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(set(names)) == 8
    assert {name.rpartition("-")[0] for name in names} == {"worker-of-one-name"}


def test_asyncio_tasks_of_one_name_are_told_apart() -> None:
    async def name() -> str:
        await asyncio.sleep(0)
        return strand_name()

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(asyncio.create_task(name(), name="one") for _ in range(5)))

    names = asyncio.run(all_of_them())
    assert len(set(names)) == 5
    assert all(name.startswith(f"{strand_name()} one-") for name in names)


def locked_task(function: Callable[..., Any]) -> Any:
    app = Celery(set_as_current=False)
    return app.task(base=LockedTask, lock_name="video:{video}")(function)


@pytest.mark.parametrize(
    "decorate",
    [lock("video:{video}"), lock_view("video:{video}"), locked("video:{video}"), locked_task],
)
def test_values_of_annotations_are_not_needed(decorate: Callable[..., Any]) -> None:
    """They may be names that only type checkers import."""
    source = "def work(video: Video, *, quality: Quality = 1) -> Result: return quality"
    if sys.version_info < (3, 14):
        source = f"from __future__ import annotations\n{source}"
    names: dict[str, Any] = {"__name__": __name__}
    exec(source, names)
    assert decorate(names["work"]).__name__ == "work"
