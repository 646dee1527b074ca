"""The steps of processes that take one lock, wait for it in its queue, hold it and release it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.nightly.model.search import Move
from tests.nightly.model.server import Command, Message, Reply, Scripts
from tests.nightly.model.state import (
    EARLIER,
    Doing,
    Process,
    State,
    canonical,
    name_of,
    with_process,
)  # fmt: skip
from tests.nightly.model.truth import EXTENDED_OWN, RELEASE_SAYS, carried_out

__all__ = ["LockModel"]

Moves = Iterator[Move]


@dataclass(frozen=True)
class LockModel:
    """What processes may do. ``scripts`` are those of the server, or ones with a fault."""

    scripts: Scripts

    def moves(self, state: State) -> Moves:
        for move in self._moves(state):
            yield move._replace(after=canonical(move.after))

    def _moves(self, state: State) -> Moves:
        for at, process in enumerate(state.processes):
            if process.doing in self._steps:
                yield from self._steps[process.doing](self, state, at, process)
            yield from deaths(state, at)
        yield from surroundings(self.scripts, state)

    def _send(self, state: State, at: int, command: Command, what: str = "") -> Moves:
        """The command runs and is answered; or its reply is lost."""
        who, verb = name_of(at), what or f"sends {command.verb}"
        yield Move((who, verb), self._answered(state, at, command))
        if not state.losses:
            return
        state = state._replace(losses=0)
        process = state.processes[at]
        over = process.over and command.verb != "acquire"
        again = process._replace(doing=Doing.AGAIN, asked=command, over=over)
        waits = with_process(state, at, again)
        ran, _ = carried_out(self.scripts, waits, command)
        yield Move((who, verb, "and the reply is lost"), ran, "fault")
        yield Move((who, verb, "and the command is lost"), waits, "fault")

    def _again(self, state: State, at: int, process: Process) -> Moves:
        """redis-py sends it once more; or the call fails, and the token is given up."""
        command = process.asked
        assert command is not None
        after = self._answered(state, at, command)
        yield Move((name_of(at), f"sends {command.verb} again"), after)
        after = with_process(state, at, Process(Doing.ABANDONING), state.server.heard - {at})
        yield Move((name_of(at), "gets an error, and gives its token up"), after)

    def _answered(self, state: State, at: int, command: Command) -> State:
        verb = command.verb
        repeated = state.processes[at].doing == Doing.AGAIN
        if verb == "acquire":
            # The client counts its lease from the moment in which it sent this first.
            process = state.processes[at]
            over = process.over and repeated
            state = with_process(state, at, process._replace(over=over, asked=None))
        after, outcome = carried_out(self.scripts, state, command)
        reply, process = outcome.reply, after.processes[at]
        if verb == "acquire":
            return with_process(after, at, self._acquired(process, command, reply))
        if verb == "leave":
            return with_process(after, at, self.left(process, reply.fence))
        if verb == "extend":
            if reply.done:
                if state.server.held != at:
                    after = after._replace(wrong=after.wrong or EXTENDED_OWN)
                return with_process(after, at, process._replace(doing=Doing.HOLDING, asked=None))
            return with_process(after, at, Process(Doing.DONE))
        # A repetition finds the lease gone, because it was released, unless it was cleared.
        said = reply.done > 0 or (repeated and reply.done == 0 and state.server.cleared != at)
        # Two that look the same are no promise: see "A release whose reply was lost".
        cleared = state.server.cleared
        unclear = process.over or (process.ousted and cleared is not None and cleared != at)
        if said and not process.released and not (repeated and unclear):
            after = after._replace(wrong=after.wrong or RELEASE_SAYS)
        return with_process(after, at, Process(Doing.DONE))

    def _acquired(self, process: Process, command: Command, reply: Reply) -> Process:
        if reply.done:
            if process.over:
                # The lease of a grant that came so late is over: it asks again.
                return process._replace(doing=Doing.ASKING, unread=())
            return self._holding(process)
        refused = process._replace(doing=Doing.REFUSED, knows=reply.holder)
        if command.channel is None:
            return refused
        number, since = reply.number, reply.fence or 0
        return refused._replace(doing=Doing.WAITING, number=number, before=None, since=since)

    def _holding(self, process: Process) -> Process:
        # Its channel is kept for the next waiter, which ignores the messages to this one.
        kept = {each: getattr(process, each) for each in ("over", "ousted", "released")}
        return Process(Doing.HOLDING, process.question, **kept)

    def _begin(self, state: State, at: int, process: Process) -> Moves:
        """They are all alike, and so begin in the order of their names."""
        if at and state.processes[at - 1].doing == Doing.NEW:
            return
        yield from _as("begin", self._ask(state, at, process))
        # A process that has waited before asks in the queue at once.
        yield from _as("begin", self._join(state, at, process))

    def _ask(self, state: State, at: int, process: Process) -> Moves:
        yield from self._send(state, at, Command("acquire", at))

    def _refused(self, state: State, at: int, process: Process) -> Moves:
        yield from _as("begin", self._join(state, at, process))
        yield from self._takes_over(state, at, process, Doing.ASKING)

    def _takes_over(self, state: State, at: int, process: Process, then: str) -> Moves:
        """The holder ran on this host, and is dead."""
        knows = process.knows
        if knows is None:
            return
        if knows != EARLIER and state.processes[knows].doing not in Doing.GONE:
            return
        cleared, _ = carried_out(self.scripts, state, Command("clear", knows))
        after = with_process(cleared, at, cleared.processes[at]._replace(doing=then, knows=None))
        what = (name_of(at), "clears the lock of", name_of(knows), "which is dead")
        yield Move(what, after, "timer")

    def _join(self, state: State, at: int, process: Process) -> Moves:
        """It listens on its channel, unless it does already, and asks in the queue."""
        question = process.question + 1
        asking = process._replace(question=question, before=process.member, member=question)
        command = Command("acquire", at, at, question, process.member, process.number)
        listens = with_process(state, at, asking, state.server.heard | {at})
        yield from self._send(listens, at, command, what="asks in the queue")

    def _wait(self, state: State, at: int, process: Process) -> Moves:
        heard = state.server.heard
        if process.unread:
            yield Move((name_of(at), "reads its message"), self._read(state, at, process))
        if at not in heard:
            yield from self._join(state, at, process._replace(unread=()))
        elif process.knows != state.server.held:
            # The end of the lease that it knows of.
            yield from _as("timer", self._join(state, at, process))
        yield from self._takes_over(state, at, process, Doing.JOINING)
        leave = Command("leave", at, at, process.question, process.before)
        yield from _as("give up", self._send(state, at, leave, what="gives up, and leaves"))
        if state.losses:
            calm = state._replace(losses=0)
            cut = with_process(calm, at, process._replace(unread=()), heard - {at})
            yield Move((name_of(at), "loses its subscription"), cut, "fault")
            quits = with_process(calm, at, Process(Doing.ABANDONING), heard - {at})
            quits, _ = carried_out(self.scripts, quits, leave)
            yield Move((name_of(at), "is interrupted, and leaves"), quits, "fault")

    def _read(self, state: State, at: int, process: Process) -> State:
        message, *others = process.unread
        process = process._replace(unread=tuple(others))
        if message.question != process.question:
            return with_process(state, at, process)
        if message.holder is not None:
            return with_process(state, at, process._replace(knows=message.holder))
        if self.is_older(message, process):
            # Its question was refused later than that, when it was sent again: is it held?
            state = with_process(state, at, process)
            after, outcome = carried_out(self.scripts, state, Command("acquire", at))
            process = after.processes[at]
            if outcome.reply.done:
                return with_process(after, at, self._holding(process))
            return with_process(after, at, process._replace(knows=outcome.reply.holder))
        if process.over:
            # It was held up for longer than its lease: it asks once more, at the end of the queue.
            state = state._replace(joined=tuple(each for each in state.joined if each != at))
            late = process._replace(doing=Doing.JOINING, unread=(), knows=None)
            return with_process(state, at, late._replace(member=None, number=None))
        return with_process(state, at, self._holding(process))

    def is_older(self, message: Message, process: Process) -> bool:
        """Whether a hand-over was before the last refusal."""
        return message.fence <= process.since

    def left(self, process: Process, fence: int | None) -> Process:
        """The process has left the queue; ``fence``: the lock was handed to it just before."""
        return Process(Doing.DONE) if fence is None else self._holding(process)

    def _hold(self, state: State, at: int, process: Process) -> Moves:
        yield from self._send(state, at, Command("release", at))
        if not process.over and (process.ousted or state.losses):
            # Otherwise an extension changes nothing.
            yield from _as("extend", self._send(state, at, Command("extend", at)))

    def _abandon(self, state: State, at: int, process: Process) -> Moves:
        after, _ = carried_out(self.scripts, state, Command("release", at))
        after = with_process(after, at, Process(Doing.DONE))
        yield Move((name_of(at), "releases by its token"), after)

    _steps = {
        Doing.NEW: _begin, Doing.ASKING: _ask, Doing.REFUSED: _refused, Doing.JOINING: _join,
        Doing.WAITING: _wait, Doing.HOLDING: _hold, Doing.AGAIN: _again, Doing.ABANDONING: _abandon,
    }  # fmt: skip


def _as(kind: str, moves: Moves) -> Moves:
    for move in moves:
        yield move if move.kind == "fault" else move._replace(kind=kind)


def deaths(state: State, at: int) -> Moves:
    """A process dies; the server notices at once, or its connection seems to be open."""
    if not state.deaths or state.processes[at].doing in Doing.ENDED:
        return
    heard = state.server.heard - {at}
    gone = state._replace(deaths=state.deaths - 1)
    yield Move((name_of(at), "dies"), with_process(gone, at, Process(Doing.DEAD), heard), "fault")
    if at in state.server.heard:
        after = with_process(gone, at, Process(Doing.CUT_OFF))
        yield Move((name_of(at), "dies, and the server does not notice"), after, "fault")


def surroundings(scripts: Scripts, state: State) -> Moves:
    """Steps that are no process's own."""
    held = state.server.held
    if held is not None and state.server.ttl:
        # A lease that nobody knows of ends without being counted.
        unhelpful = held == EARLIER or _is_unknown(state.processes[held])
        if state.expiries or unhelpful:
            left = state.expiries if unhelpful else state.expiries - 1
            server = scripts.expire(state.server)
            after = state._replace(server=server, expiries=left, expired=True)
            if held != EARLIER:
                after = with_process(after, held, after.processes[held]._replace(over=True))
            yield Move(("the lease of", name_of(held), "runs out"), after, "expiry")
    if state.clears and held is not None:
        spent = state._replace(clears=state.clears - 1)
        cleared, _ = carried_out(scripts, spent, Command("clear"))
        yield Move(("an operator clears the lock of", name_of(held)), cleared, "operator")


def _is_unknown(process: Process) -> bool:
    """Whether the process does not know, and is not told, that a lease of it holds the lock."""
    if process.doing == Doing.WAITING:
        return not any(message.holder is None for message in process.unread)
    return process.doing in Doing.ENDED
