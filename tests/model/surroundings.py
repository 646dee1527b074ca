"""What happens to everybody: deaths, leases that run out, operators, commands that come late."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.messages import Command
from tests.model.search import Move
from tests.model.server import Scripts
from tests.model.state import (
    CUT_OFF,
    DEAD,
    DONE,
    NEW,
    REFUSED,
    WAITING,
    Process,
    State,
    name_of,
    with_process,
)
from tests.model.truth import carried_out

__all__ = ["deaths", "surroundings"]

ENDED = (NEW, REFUSED, DONE, DEAD, CUT_OFF)


def deaths(state: State, at: int) -> Iterator[Move]:
    """A process dies; the server notices at once, or its connection seems to be open."""
    if not state.deaths or state.processes[at].doing in ENDED:
        return
    heard = state.server.heard - {at}
    gone = state._replace(deaths=state.deaths - 1)
    yield Move((name_of(at), "dies"), with_process(gone, at, Process(DEAD), heard), "fault")
    if at in state.server.heard:
        after = with_process(gone, at, Process(CUT_OFF))
        yield Move((name_of(at), "dies, and the server does not notice"), after, "fault")


def surroundings(scripts: Scripts, state: State) -> Iterator[Move]:
    """Steps that are no process's own."""
    held = state.server.held
    if held is not None and state.server.ttl:
        # A lease that nobody knows of ends without being counted.
        unhelpful = held >= len(state.processes) or _is_unknown(state.processes[held])
        if state.expiries or unhelpful:
            left = state.expiries if unhelpful else state.expiries - 1
            server = scripts.expire(state.server)
            after = state._replace(server=server, expiries=left, expired=True)
            if held < len(state.processes):
                after = with_process(after, held, after.processes[held]._replace(over=True))
            yield Move(("the lease of", name_of(held), "runs out"), after, "expiry")
    if state.clears and held is not None:
        spent = state._replace(clears=state.clears - 1)
        cleared, _ = carried_out(scripts, spent, Command("clear"))
        yield Move(("an operator clears the lock of", name_of(held)), cleared, "operator")
    if state.on_its_way is not None:
        late = state._replace(on_its_way=None, was_late=True)
        after, _ = carried_out(scripts, late, state.on_its_way)
        what = (f"only now the server runs the first {state.on_its_way.verb} of",)
        yield Move((*what, name_of(state.on_its_way.token)), after)


def _is_unknown(process: Process) -> bool:
    """Whether the process does not know, and is not told, that a lease of it holds the lock."""
    if process.doing == WAITING:
        return not any(message.holder is None for message in process.unread)
    return process.doing in ENDED
