"""Why a lease was lost, or a lock cleared: the words for people, and a closed set for counting."""

from __future__ import annotations

__all__ = ["BY_RUN", "BY_TAKEOVER", "BY_WORKER", "RAN_OUT", "cause_of_clear", "cause_of_loss"]

RAN_OUT = "its ttl ran out"
BY_TAKEOVER = "takeover, its owner being gone"
BY_WORKER = "the worker, whose pool child is dead"
BY_RUN = "its own run, which had lost it"

_CAUSES = {BY_TAKEOVER: "takeover", BY_WORKER: "worker", BY_RUN: "run"}


def cause_of_clear(by: str | None) -> str:
    """Return "takeover", "worker" or "run" for what this package clears, and else "cleared"."""
    return _CAUSES.get(by or "", "cleared")


def cause_of_loss(reason: str) -> str:
    """Return "expired" if the lease was not extended in time, and "gone" if the store did not have
    it any more."""
    return "expired" if reason == RAN_OUT else "gone"
