"""The state of the model of one lock: the server, the processes, and what may still go wrong."""

from __future__ import annotations

from typing import NamedTuple

from tests.model.messages import Command, Message, Server

__all__ = [
    "ABANDONING",
    "AGAIN",
    "ASKING",
    "CUT_OFF",
    "DEAD",
    "DONE",
    "EARLIER",
    "HOLDING",
    "JOINING",
    "NEW",
    "REFUSED",
    "WAITING",
    "Process",
    "State",
    "name_of",
    "with_process",
]

NEW = "has not begun"
ASKING = "is about to ask for the lock"
REFUSED = "was refused"
JOINING = "listens, and is about to ask in the queue"
WAITING = "waits"
HOLDING = "holds the lock"
AGAIN = "has got no reply"
ABANDONING = "has given its token up"
DONE = "is done"
DEAD = "is dead"
CUT_OFF = "is dead, but its connection seems to be open"

EARLIER = 9
"""the token of a lease that another process had before, which has died since"""


class Process(NamedTuple):
    """What a process knows. Its number is its token, and its channel."""

    doing: str = NEW
    question: int = 0
    """the number of its last question in the queue"""
    member: int | None = None
    """the question of its member of the queue, as far as it knows"""
    before: int | None = None
    """the question before that, which may still be in the queue"""
    number: int | None = None
    """its number in the queue"""
    knows: int | None = None
    """the holder that it knows of"""
    since: int = 0
    """the last fence when it was refused. For the client that is a moment of the server's clock"""
    over: bool = False
    """its own clock says that its lease is over"""
    ousted: bool = False
    """an operator has cleared its lease, and it does not know that yet"""
    released: bool = False
    """the server has released its lease"""
    had_turn: bool = False
    """it has been granted the lock before, and may not know that"""
    unread: tuple[Message, ...] = ()
    """what was published to it"""
    asked: Command | None = None
    """the command whose reply was lost"""


class State(NamedTuple):
    """Where everybody stands."""

    server: Server
    processes: tuple[Process, ...]
    joined: tuple[int, ...] = ()
    """who waits, in the order in which they joined the queue"""
    deaths: int = 0
    """how many processes may still die; the same for the next four"""
    expiries: int = 0
    losses: int = 0
    clears: int = 0
    late: bool = False
    """whether a command that was lost may run later, after its own repetition"""
    on_its_way: Command | None = None
    """a command that the server has not run yet, though its sender has sent it again"""
    was_late: bool = False
    """whether such a command has run"""
    expired: bool = False
    """the last lease has ended by its ttl"""
    wrong: str = ""
    """the property that the last step has violated"""

    def has_died(self) -> bool:
        return any(each.doing in (DEAD, CUT_OFF) for each in self.processes)


def name_of(token: int | None) -> str:
    """A process in words."""
    if token == EARLIER:
        return "an earlier process"
    return "nobody" if token is None else f"process {'ABC'[token]}"


def with_process(
    state: State, at: int, process: Process, heard: frozenset[int] | None = None
) -> State:
    """The state with another one in the place of a process; ``heard``: and with these channels."""
    processes = (*state.processes[:at], process, *state.processes[at + 1 :])
    if heard is None or heard == state.server.heard:
        return state._replace(processes=processes)
    return state._replace(processes=processes, server=state.server._replace(heard=heard))
