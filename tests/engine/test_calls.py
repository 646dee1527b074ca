"""How much of the package runs for one lock: what a stranger has to read."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

from django.test.utils import override_settings

import django_tasklock
from django_tasklock import lock

PACKAGE = Path(django_tasklock.__file__).parent
STORES = PACKAGE / "stores"


@override_settings(TASKLOCK={"default": {"BACKEND": "django_tasklock.stores.memory.MemoryStore"}})
def test_a_lock_that_is_free_takes_at_most_40_calls_in_9_files() -> None:
    # Given a block that has been entered before
    for _ in range(3):
        one_lock()
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        caller = frame.f_back.f_code.co_filename if frame.f_back else ""
        # What the store does, and asks of others, belongs to the store.
        of_store = any(Path(by).is_relative_to(STORES) for by in (path, caller))
        if event == "call" and path.is_relative_to(PACKAGE) and not of_store:
            calls[str(path.relative_to(PACKAGE))] += 1

    # I expect its next use to call few functions, in few files
    sys.setprofile(count)
    try:
        one_lock()
    finally:
        sys.setprofile(None)
    assert calls["_engine/lock.py"] > 0
    assert calls.total() <= 40, calls
    assert len(calls) <= 9, calls


def one_lock() -> None:
    with lock("a", wait=5):
        pass
