"""The stages of the hard cases."""

from __future__ import annotations

from tests.stage.fixtures import broker_server, lock_server, make_stage

__all__ = ["broker_server", "lock_server", "make_stage"]
