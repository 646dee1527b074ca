"""One state for all states that differ only in numbers: fewer states to visit.

Only the order of fences and of numbers in the queue matters. What a process knows of the queue is
forgotten once it has left it, if nothing on the server can remind of it.
"""

from __future__ import annotations

from tests.model.messages import Message
from tests.model.state import AGAIN, JOINING, REFUSED, WAITING, State

__all__ = ["canonical"]

IN_QUEUE = (WAITING, JOINING, AGAIN)


def canonical(state: State) -> State:
    server = state.server
    late = state.on_its_way.token if state.on_its_way is not None else None
    queued = {each.token for each in server.queue}
    numbers = {each.number for each in server.queue}
    fences = {server.fence}
    processes = list(state.processes)
    heard = server.heard
    asks_again = False
    for at, process in enumerate(processes):
        if process.doing in IN_QUEUE:
            if process.number is not None:
                numbers.add(process.number)
            if process.asked is not None:
                asks_again = True
                if process.asked.number is not None:
                    numbers.add(process.asked.number)
            fences.add(process.since)
            for message in process.unread:
                fences.add(message.fence)
        elif at not in queued and at != late:
            heard = heard - {at}
            knows = process.knows if process.doing == REFUSED else None
            if process.question or process.knows != knows or process.since or process.had_turn:
                processes[at] = process._replace(
                    question=0,
                    member=None,
                    before=None,
                    number=None,
                    since=0,
                    knows=knows,
                    had_turn=False,
                )
    if state.on_its_way is not None and state.on_its_way.number is not None:
        numbers.add(state.on_its_way.number)
    fences.discard(0)
    fence_rank = {fence: at for at, fence in enumerate(sorted(fences), 1)}
    rank = {number: at for at, number in enumerate(sorted(numbers), 1)}
    rank_of_none: dict[int | None, int | None] = {None: None}
    rank_of_none.update(rank.items())
    if any(key != value for key, value in rank.items()):
        server = server._replace(
            queue=tuple(each._replace(number=rank[each.number]) for each in server.queue)
        )
        for at, process in enumerate(processes):
            asked = process.asked
            if asked is not None:
                asked = asked._replace(number=rank_of_none[asked.number])
            if process.number is not None or asked is not None:
                processes[at] = process._replace(
                    number=rank_of_none.get(process.number), asked=asked
                )
        if state.on_its_way is not None:
            number = rank_of_none[state.on_its_way.number]
            state = state._replace(on_its_way=state.on_its_way._replace(number=number))
    if any(key != value for key, value in fence_rank.items()):
        for at, process in enumerate(processes):
            if process.since or process.unread:
                processes[at] = process._replace(
                    since=fence_rank.get(process.since, 0),
                    unread=tuple(_ranked(each, fence_rank) for each in process.unread),
                )
    repeats = asks_again or state.losses or late is not None
    server = server._replace(
        last_number=len(rank), fence=len(fence_rank), heard=heard,
        cleared=server.cleared if repeats else None,
    )  # fmt: skip
    return state._replace(server=server, processes=tuple(processes))


def _ranked(message: Message, rank: dict[int, int]) -> Message:
    return message._replace(fence=rank[message.fence])
