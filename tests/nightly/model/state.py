"""Where everybody stands; and states that differ in numbers alone are one state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tests.nightly.model.server import Command, Message, Server

__all__ = ["EARLIER", "Doing", "Process", "State", "canonical", "name_of"]

EARLIER = 9
"""the token of a lease that another process had before, which has died since"""


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


class Process(NamedTuple):
    """What a process knows."""

    doing: str = Doing.NEW
    number: int | None = None
    """its number in the queue"""
    knows: int | None = None
    """the holder that it knows of"""
    last: int = 0
    """the fence of the lease that refused it"""
    abandoned: bool = False
    """its listener passes on what is handed to it"""
    unread: tuple[Message, ...] = ()
    asked: Command | None = None
    """the command whose reply was lost, or which has not reached the server yet"""
    over: bool = False
    """its own clock says that its lease is over"""
    ousted: bool = False
    """an operator has cleared its lease, and it does not know that yet"""
    released: bool = False
    """the server has released its lease"""
    had_turn: bool = False
    """it has been granted the lock before, and may not know that"""


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

    def put(self, at: int, process: Process, heard: frozenset[int] | None = None) -> State:
        """With another one in the place of a process; ``heard``: and with these channels."""
        processes = (*self.processes[:at], process, *self.processes[at + 1 :])
        server = self.server if heard is None else self.server._replace(heard=heard)
        return self._replace(processes=processes, server=server)


def name_of(token: int | None) -> str:
    """A process in words."""
    if token == EARLIER:
        return "an earlier process"
    return "nobody" if token is None else f"process {'ABC'[token]}"


def canonical(state: State) -> State:
    """Only the order of fences and of numbers in the queue matters, so they become 1, 2, 3, ...

    What a process knows of the queue is forgotten once it has left it.
    """
    server, processes, heard = state.server, list(state.processes), state.server.heard
    queued = {each.token for each in server.queue}
    for at, process in enumerate(processes):
        if process.doing in Doing.IN_QUEUE or at in queued:
            continue
        if not process.unread and process.asked is None:
            heard -= {at}
            processes[at] = process._replace(
                number=None, last=0, had_turn=False, abandoned=False,
                knows=process.knows if process.doing == Doing.REFUSED else None,
            )  # fmt: skip
    asked = [each.asked.number for each in processes if each.asked is not None]
    numbers = (
        *(each.number for each in processes),
        *asked,
        *(each.number for each in server.queue),
    )
    number = _ranks(numbers)
    unread = [message.fence for each in processes for message in each.unread]
    fence = _ranks((server.fence, *unread, *(each.last for each in processes)))
    for at, process in enumerate(processes):
        processes[at] = process._replace(
            number=number.get(process.number), last=fence.get(process.last, 0),
            unread=tuple(each._replace(fence=fence.get(each.fence, 0)) for each in process.unread),
            asked=process.asked and process.asked._replace(number=number.get(process.asked.number)),
        )  # fmt: skip
    server = server._replace(
        queue=tuple(each._replace(number=number[each.number]) for each in server.queue),
        last_number=len(number), fence=len(fence), heard=heard,
    )  # fmt: skip
    return state._replace(server=server, processes=tuple(processes))


def _ranks(numbers: Iterable[int | None]) -> dict[int | None, int]:
    return {number: rank for rank, number in enumerate(sorted(filter(None, set(numbers))), 1)}
