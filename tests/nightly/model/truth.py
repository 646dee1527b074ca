"""What a command does to the whole state, and which properties it violates.

The model knows more than any process does: who joined first, whose lease was cleared.
"""

from __future__ import annotations

from tests.nightly.model.search import Move
from tests.nightly.model.server import Command, Reply, Scripts
from tests.nightly.model.state import EARLIER, Doing, State, name_of

__all__ = ["EXTENDED_OWN", "NO_END", "RELEASE_SAYS", "broken", "carried_out", "is_over"]

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


def carried_out(scripts: Scripts, state: State, command: Command) -> tuple[State, Reply]:
    """The server runs a command, and what it publishes arrives."""
    before, token = state.server, command.token
    server, reply, messages = scripts.run(before, command)
    state = state._replace(server=server)
    for at, process in enumerate(state.processes):
        if at in server.heard and (process.doing in Doing.IN_QUEUE or process.abandoned):
            heard = tuple(each for each in messages if each.to == at)
            state = state.put(at, process._replace(unread=process.unread + heard))
    if before.held is not None and before.held != server.held:
        state = state._replace(expired=False)
        if before.held != EARLIER:
            was = state.processes[before.held]
            if command.verb == "clear":
                state = state.put(before.held, was._replace(ousted=True))
            elif token == before.held:
                state = state.put(before.held, was._replace(released=True))
    if command.verb == "acquire" and token is not None:
        asker = state.processes[token]
        if asker.ousted and asker.doing != Doing.HOLDING:
            state = state.put(token, asker._replace(ousted=False, released=False))
    joined = state.joined
    if any(each.token == token for each in server.queue) and token not in joined:
        assert token is not None
        joined = (*joined, token)
    new = server.held if server.held != before.held else None
    wrong = state.wrong
    if new is not None:
        processes, queued = state.processes, {each.token for each in before.queue}
        for at in joined[: joined.index(new)] if new in joined else joined:
            # One that is not subscribed may be passed over: it cannot be told from a dead one.
            waits = at in queued and processes[at].doing in (Doing.WAITING, Doing.AGAIN)
            turns = processes[at].had_turn or processes[new].had_turn
            if waits and at in before.heard and not turns:
                wrong = wrong or ORDER
        if processes[new].doing == Doing.DEAD and new != token:
            wrong = wrong or DEAD_HOLDS
        if server.fence <= before.fence:
            wrong = wrong or FENCES
        state = state.put(new, processes[new]._replace(had_turn=True))
    joined = tuple(
        each for each in joined
        if (state.processes[each].doing in Doing.IN_QUEUE
            and (command.verb, token) != ("leave", each))
        or any(entry.token == each for entry in server.queue)
    )  # fmt: skip
    return state._replace(joined=joined, wrong=wrong), reply


def broken(state: State, moves: list[Move]) -> str | None:
    """The property that a state violates."""
    server, processes = state.server, state.processes
    if state.wrong:
        return state.wrong
    # Who rightly believes that it holds the lock.
    holders = [
        each for each in processes
        if each.doing == Doing.HOLDING and not each.over and not each.ousted
    ]  # fmt: skip
    if len(holders) > 1:
        return EXCLUSION
    if server.held is not None and not server.ttl:
        return NO_TTL
    movers = {move.what[0] for move in moves if move.kind == "step"}
    waiting = [at for at, each in enumerate(processes) if each.doing == Doing.WAITING]
    dead = any(each.doing in Doing.GONE for each in processes)
    if movers <= {name_of(server.held)} and waiting and not dead:
        # None of the waiters has anything to do before the holder ends, or its lease.
        first = next((each.token for each in server.queue if each.token in waiting), None)
        if None not in (first, server.held) and processes[first or 0].knows != server.held:
            return NEXT_KNOWS
    if movers:
        return None
    # Nothing moves but by time, by somebody new, or by a fault.
    if waiting and server.held is None and not state.expired:
        return LOST_WAKE_UP
    by_one_of_them = server.held not in (None, EARLIER)
    if by_one_of_them and processes[server.held or 0].doing not in Doing.GONE:
        return FORGOTTEN
    return None


def is_over(state: State) -> bool:
    """Whether everybody has come to an end, and has left nothing."""
    return state.server.held is None and all(each.doing in Doing.ENDED for each in state.processes)
