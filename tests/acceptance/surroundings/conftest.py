"""The fixtures of the hard cases: a broker, a stage."""

from __future__ import annotations

from tests.acceptance.hard_cases.conftest import (
    broker_server,
    lock_server,
    make_stage,
    pytest_runtest_makereport,
    stage,
)

__all__ = ["broker_server", "lock_server", "make_stage", "pytest_runtest_makereport", "stage"]
