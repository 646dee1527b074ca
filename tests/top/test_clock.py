"""The clock that leases are measured by."""

from __future__ import annotations

import importlib.util
import sys
import time
from datetime import timedelta
from types import ModuleType

import pytest
from freezegun import freeze_time

from django_tasklock._values import clock


@pytest.fixture(params=["here", "without CLOCK_BOOTTIME"])
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The clock of this system, and that of one such as macOS."""
    if request.param == "here":
        return clock
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    name = "clock_without_boottime"
    spec = importlib.util.spec_from_file_location(name, clock.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # freezegun looks for the functions to replace in all modules that are imported.
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_it_goes_on_while_time_is_frozen(module: ModuleType) -> None:
    before = module.now()
    with freeze_time("2030-06-01") as frozen:
        frozen.tick(timedelta(hours=1))
        then = module.now()
        assert 0 < then - before < 600
        while module.now() == then:
            pass
