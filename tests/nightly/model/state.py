"""Where everybody stands; and states that differ in numbers alone are one state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tests.nightly.model.server import Command, Message, Server

__all__ = [
    "EARLIER", "Doing", "Process", "State", "canonical", "name_of", "replaced", "with_process",
]  # fmt: skip


class Doing:
    """What a process does."""

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

    IN_QUEUE = (WAITING, JOINING, AGAIN)
    GONE = (DEAD, CUT_OFF)
    ENDED = (NEW, REFUSED, DONE, *GONE)


EARLIER = 9
"""the token of a lease that another process had before, which has died since"""


class Process(NamedTuple):
    """What a process knows. Its number is its token, and its channel."""

    doing: str = Doing.NEW
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
    """how many processes may still die; the same for the next three"""
    expiries: int = 0
    losses: int = 0
    clears: int = 0
    expired: bool = False
    """the last lease has ended by its ttl"""
    wrong: str = ""
    """the property that the last step has violated"""


def name_of(token: int | None) -> str:
    """A process in words."""
    if token == EARLIER:
        return "an earlier process"
    return "nobody" if token is None else f"process {'ABC'[token]}"


def replaced(processes: tuple[Process, ...], at: int, process: Process) -> tuple[Process, ...]:
    return (*processes[:at], process, *processes[at + 1 :])


def with_process(
    state: State, at: int, process: Process, heard: frozenset[int] | None = None
) -> State:
    """The state with another one in the place of a process; ``heard``: and with these channels."""
    processes = replaced(state.processes, at, process)
    server = state.server if heard is None else state.server._replace(heard=heard)
    return state._replace(processes=processes, server=server)


def canonical(state: State) -> State:
    """Only the order of fences and of numbers in the queue matters, so they become 1, 2, 3, ...

    What a process knows of the queue is forgotten once it has left it.
    """
    server, processes, heard = state.server, list(state.processes), state.server.heard
    queued = {each.token for each in server.queue}
    for at, process in enumerate(processes):
        if process.doing not in Doing.IN_QUEUE and at not in queued:
            heard -= {at}
            processes[at] = process._replace(
                question=0, member=None, before=None, number=None, since=0, had_turn=False,
                knows=process.knows if process.doing == Doing.REFUSED else None,
            )  # fmt: skip
    waiting = [each for each in processes if each.doing in Doing.IN_QUEUE]
    asked = [each.asked.number for each in waiting if each.asked is not None]
    numbers = [each.number for each in waiting]
    number = _ranks((*numbers, *asked, *(each.number for each in server.queue)))
    unread = [message.fence for each in waiting for message in each.unread]
    fence = _ranks((server.fence, *unread, *(each.since for each in waiting)))
    for at, process in enumerate(processes):
        processes[at] = process._replace(
            number=number.get(process.number), since=fence.get(process.since, 0),
            unread=tuple(each._replace(fence=fence[each.fence]) for each in process.unread),
            asked=process.asked and process.asked._replace(number=number.get(process.asked.number)),
        )  # fmt: skip
    server = server._replace(
        queue=tuple(each._replace(number=number[each.number]) for each in server.queue),
        last_number=len(number), fence=len(fence), heard=heard,
        cleared=server.cleared if asked or state.losses else None,
    )  # fmt: skip
    return state._replace(server=server, processes=tuple(processes))


def _ranks(numbers: Iterable[int | None]) -> dict[int | None, int]:
    return {number: rank for rank, number in enumerate(sorted(filter(None, set(numbers))), 1)}
