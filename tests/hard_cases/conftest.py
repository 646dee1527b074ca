"""The fixtures of the stage."""

from __future__ import annotations

from tests.stage.fixtures import broker_server, company, lock_server, make_stage, shared, stage

__all__ = ["broker_server", "company", "lock_server", "make_stage", "shared", "stage"]
