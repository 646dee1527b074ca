"""The steps of calls and messages of one task with ``unique_while="queued"``.

A call reserves, and then sends its message. A worker receives it, takes the lock, ends the
reservation, and only then begins to read: see django_tasklock/celery/unique.py. The message of a
worker that dies is delivered again, as with ``acks_late``; one that finds the lock held waits in
the queue again, as with ``on_conflict="retry"``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.search import Move

__all__ = ["DOUBLE", "LOST_CALL", "NO_MESSAGE", "NO_TTL", "Calls", "JobState", "broken", "is_over"]

NO_MESSAGE = "no reservation for a message that does not exist"
NO_TTL = "no reservation without ttl"
LOST_CALL = "a call that was refused is served by a run that starts after it"
DOUBLE = "one message waits at most"

SENDING, UNSURE = "has reserved", "got no reply"
QUEUED, RECEIVED, LOCKED, RUNNING, RELEASING = "queued", "received", "locked", "running", "over"
REFUSED, CALLER_DIED, GONE = "refused", "its caller died", "gone"
EXISTS = (QUEUED, RECEIVED, LOCKED, RUNNING, RELEASING)


class JobState(NamedTuple):
    calls: tuple[str, ...]
    """where each call, or its message, is; "" has not begun"""
    reserved: int | None = None
    """for which call's message"""
    ttl: bool = False
    locked: int | None = None
    owed: frozenset[int] = frozenset()
    """calls that were refused, and after which no run has started yet"""
    started: frozenset[int] = frozenset()
    """messages that have started before: delivered again, they have no reservation"""
    deaths: int = 0
    losses: int = 0
    failed: bool = False
    """something has gone wrong: a reservation may stay until its ttl"""


@dataclass(frozen=True)
class Calls:
    """What calls, messages and workers do. A subclass plants a fault in one of the decisions."""

    def can_reserve(self, state: JobState, at: int) -> bool:
        return state.reserved in (None, at)

    def can_end(self, state: JobState, at: int) -> bool:
        return state.reserved == at

    def reserved(self, state: JobState, at: int) -> JobState:
        return state._replace(reserved=at, ttl=True)

    def after_failure(self, state: JobState, at: int) -> JobState:
        """The message could not be sent."""
        return self.end(state, at)

    ends_before_reading = True

    def end(self, state: JobState, at: int) -> JobState:
        return state._replace(reserved=None, ttl=False) if self.can_end(state, at) else state

    def moves(self, state: JobState) -> Iterator[Move]:
        for at, call in enumerate(state.calls):
            name = f"call {at + 1}"
            for what, after, kind in self._moves(state, at, call):
                yield Move((name, *what), after, kind)
        if state.reserved is None or not state.ttl or not state.failed:
            return
        # It lasts for much longer than a call takes to send its message.
        if state.calls[state.reserved] not in (SENDING, UNSURE, *EXISTS):
            after = state._replace(reserved=None, ttl=False)
            yield Move(("the reservation runs out",), after, "expiry")

    def _moves(self, state: JobState, at: int, call: str) -> Iterator[Move]:
        worse = state._replace(failed=True)
        if call in ("", UNSURE):
            if at and not state.calls[at - 1]:
                return
            if self.can_reserve(state, at):
                after = self.reserved(state, at)
                yield Move(("reserves",), _with(after, at, SENDING))
                if state.losses:
                    lost = after._replace(losses=0, failed=True)
                    yield Move(
                        ("reserves, and the reply is lost",), _with(lost, at, UNSURE), "fault"
                    )
            else:
                after = state._replace(owed=state.owed | {at})
                yield Move(("is refused",), _with(after, at, REFUSED))
        elif call == SENDING:
            yield Move(("is sent",), _with(state, at, QUEUED))
            failed = _with(self.after_failure(state, at), at, GONE)
            yield Move(("cannot be sent",), failed._replace(owed=frozenset()), "fault")
            if state.deaths:
                died = worse._replace(deaths=0, owed=frozenset())
                yield Move(("loses its process",), _with(died, at, CALLER_DIED), "fault")
        elif call == QUEUED:
            yield Move(("is received",), _with(state, at, RECEIVED))
        elif call in EXISTS:
            yield from self._run(state, at, call)
            if state.deaths:
                locked = None if state.locked == at else state.locked
                again = worse._replace(deaths=0, locked=locked)
                yield Move(("loses its worker",), _with(again, at, QUEUED), "fault")

    def _run(self, state: JobState, at: int, call: str) -> Iterator[Move]:
        if call == RECEIVED and state.locked is None:
            yield Move(("takes the lock",), _with(state._replace(locked=at), at, LOCKED))
        elif call == RECEIVED:
            yield Move(("waits in the queue again",), _with(state, at, QUEUED))
        elif call == LOCKED:
            # What is owed is served by what is read from now on.
            begun = state._replace(started=state.started | {at}, owed=frozenset())
            if self.ends_before_reading:
                begun = self.end(state, at)._replace(started=begun.started, owed=frozenset())
            yield Move(("ends its reservation, and reads",), _with(begun, at, RUNNING))
            if state.losses and self.ends_before_reading:
                lost = begun._replace(losses=0, failed=True, reserved=state.reserved, ttl=state.ttl)
                yield Move(("does not end its reservation",), _with(lost, at, RUNNING), "fault")
        elif call == RUNNING:
            after = state if self.ends_before_reading else self.end(state, at)
            yield Move(("has run",), _with(after, at, RELEASING))
        elif call == RELEASING:
            yield Move(("releases, and is over",), _with(state._replace(locked=None), at, GONE))


def broken(state: JobState, moves: list[Move]) -> str | None:
    if state.reserved is not None:
        if not state.ttl:
            return NO_TTL
        if not state.failed and state.calls[state.reserved] not in (SENDING, *EXISTS):
            return NO_MESSAGE
    waiting = [at for at, call in enumerate(state.calls) if call in (QUEUED, RECEIVED)]
    if len(set(waiting) - state.started) > 1:
        return DOUBLE
    if state.owed and not state.failed and not any(move.kind == "step" for move in moves):
        return LOST_CALL
    return None


def is_over(state: JobState) -> bool:
    """Nothing is left."""
    return state.reserved is None and all(
        call in ("", REFUSED, CALLER_DIED, GONE) for call in state.calls
    )


def _with(state: JobState, at: int, call: str) -> JobState:
    return state._replace(calls=(*state.calls[:at], call, *state.calls[at + 1 :]))
