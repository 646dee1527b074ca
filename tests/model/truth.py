"""What a command does to the whole state, and which properties it violates.

The model knows more than any process does: who joined first, whose lease was cleared.
"""

from __future__ import annotations

from tests.model.messages import Command, Message, Outcome
from tests.model.search import Move
from tests.model.server import Scripts
from tests.model.state import (
    AGAIN,
    CUT_OFF,
    DEAD,
    DONE,
    HOLDING,
    JOINING,
    NEW,
    REFUSED,
    WAITING,
    Process,
    State,
    name_of,
)

__all__ = [
    "DEAD_HOLDS", "EXCLUSION", "EXTENDED_OWN", "FENCES", "FORGOTTEN", "LOST_WAKE_UP",
    "NEXT_KNOWS", "NO_END", "NO_TTL", "ORDER", "RELEASE_SAYS", "broken", "carried_out", "is_over",
]  # fmt: skip

EXCLUSION = "mutual exclusion: two processes hold the lock"
NO_TTL = "no lock without ttl"
ORDER = "order: a waiter was overtaken by one that came later"
FENCES = "fences grow"
LOST_WAKE_UP = "no lost wake-up: the lock is free, and a waiter sleeps"
FORGOTTEN = "no lost wake-up: a living process has the lock, and does not know of it"
NEXT_KNOWS = "no lost wake-up: the next waiter does not know whose lease to wait for"
RELEASE_SAYS = "a release says True only if its lease was released"
EXTENDED_OWN = "an extension says True only of a lease that holds the lock"
DEAD_HOLDS = "no lock is handed to a waiter that is known to be dead"
NO_END = "everybody can come to an end"


def carried_out(scripts: Scripts, state: State, command: Command) -> tuple[State, Outcome]:
    """The server runs a command, and what it publishes arrives."""
    before = state.server
    outcome = scripts.run(before, command)
    server, wrong = outcome.server, state.wrong
    processes, joined, expired = state.processes, state.joined, state.expired
    if outcome.messages:
        processes = tuple(
            _with_news(each, at, server.heard, outcome.messages)
            for at, each in enumerate(processes)
        )
    # A late question may have left a member of the queue, to which its own release hands the lock.
    ended = server.held != before.held or (command.verb == "release" and outcome.reply.done > 0)
    if before.held is not None and ended:
        expired = False
        if before.held < len(processes):
            was = processes[before.held]
            if command.verb == "clear":
                was = was._replace(ousted=True)
            elif command.token == before.held:
                was = was._replace(released=True)
            processes = _with(processes, before.held, was)
    token = command.token
    asker = processes[token] if command.verb == "acquire" and token is not None else None
    if asker is not None and token is not None and asker.ousted and asker.doing != HOLDING:
        processes = _with(processes, token, asker._replace(ousted=False, released=False))
    if any(each.token == token for each in server.queue) and token not in joined:
        assert token is not None
        joined = (*joined, token)
    new = server.held if server.held != before.held else None
    if new is not None:
        queued = {each.token for each in before.queue}
        overtaken = joined[: joined.index(new)] if new in joined else joined
        for at in overtaken:
            # One that is not subscribed may be passed over: it cannot be told from a dead one.
            waits = at in queued and processes[at].doing in (WAITING, AGAIN)
            turns = processes[at].had_turn or processes[new].had_turn or state.was_late
            if waits and at in before.heard and not turns:
                wrong = wrong or ORDER
        if processes[new].doing == DEAD and new != token:
            wrong = wrong or DEAD_HOLDS
        if server.fence <= before.fence:
            wrong = wrong or FENCES
        processes = _with(processes, new, processes[new]._replace(had_turn=True))
    in_queue = (WAITING, JOINING, AGAIN)
    joined = tuple(
        each for each in joined
        if (processes[each].doing in in_queue and not (command.verb == "leave" and each == token))
        or any(entry.token == each for entry in server.queue)
    )  # fmt: skip
    after = state._replace(
        server=server, processes=processes, joined=joined, expired=expired, wrong=wrong
    )
    return after, outcome


def _with(processes: tuple[Process, ...], at: int, process: Process) -> tuple[Process, ...]:
    return (*processes[:at], process, *processes[at + 1 :])


def _with_news(
    process: Process, at: int, heard: frozenset[int], messages: tuple[Message, ...]
) -> Process:
    if at not in heard or process.doing not in (JOINING, WAITING, AGAIN):
        return process
    own = tuple(each for each in messages if each.channel == at)
    return process._replace(unread=process.unread + own) if own else process


def holds(process: Process) -> bool:
    """Whether a process rightly believes that it holds the lock."""
    return process.doing == HOLDING and not process.over and not process.ousted


def broken(state: State, moves: list[Move]) -> str | None:
    """The property that a state violates."""
    server = state.server
    if state.wrong:
        return state.wrong
    if sum(map(holds, state.processes)) > 1:
        return EXCLUSION
    if server.held is not None and not server.ttl:
        return NO_TTL
    movers = {move.what[0] for move in moves if move.kind == "step"}
    waiting = [at for at, each in enumerate(state.processes) if each.doing == WAITING]

    def knows(at: int) -> int | None:
        return state.processes[at].knows

    if movers <= {name_of(server.held)} and waiting and not (state.has_died() or state.was_late):
        # None of the waiters has anything to do before the holder ends, or its lease.
        first = next((each.token for each in server.queue if each.token in waiting), None)
        if server.held is not None and first is not None and knows(first) != server.held:
            return NEXT_KNOWS
    if movers or state.was_late:
        return None
    # Nothing moves but by time, by somebody new, or by a fault.
    if waiting and server.held is None and not state.expired:
        return LOST_WAKE_UP
    by_one_of_them = server.held is not None and server.held < len(state.processes)
    if by_one_of_them and state.processes[server.held or 0].doing not in (DEAD, CUT_OFF):
        return FORGOTTEN
    return None


def is_over(state: State) -> bool:
    """Whether everybody has come to an end, and has left nothing."""
    return state.server.held is None and all(
        each.doing in (DONE, REFUSED, DEAD, CUT_OFF, NEW) for each in state.processes
    )
