"""The steps of processes that take one lock, wait for it in its queue, hold it and release it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.nightly.model.search import Move
from tests.nightly.model.server import ASK_AGAIN, HANDED, Command, Message, Reply, Scripts
from tests.nightly.model.state import EARLIER, Doing, Process, State, canonical, name_of
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
            if process.abandoned and process.doing not in Doing.GONE:
                yield from self._listener(state, at, process)
            yield from deaths(state, at)
        yield from surroundings(self.scripts, state)

    def _send(self, state: State, at: int, command: Command, what: str = "") -> Moves:
        """The command runs and is answered; or its reply is lost, or it is on its way for long."""
        who, verb = name_of(at), what or f"sends {command.verb}"
        yield Move((who, verb), self._answered(state, at, command))
        if not state.losses:
            return
        process = state.processes[at]
        over = process.over and command.verb != "acquire"
        waits = state._replace(losses=0).put(
            at, process._replace(doing=Doing.AGAIN, asked=command, over=over)
        )
        ran, _ = carried_out(self.scripts, waits, command)
        yield Move((who, verb, "and the reply is lost"), ran, "fault")
        yield Move((who, verb, "and the command is lost"), waits, "fault")
        given_up = Process(Doing.ABANDONING, asked=command, abandoned=True)
        yield Move((who, verb, "and is interrupted"), waits.put(at, given_up), "fault")

    def _again(self, state: State, at: int, process: Process) -> Moves:
        """It is sent once more; or the call fails, and the token is given up."""
        command = process.asked
        assert command is not None
        after = self._answered(state, at, command)
        yield Move((name_of(at), f"sends {command.verb} again"), after)
        given_up = Process(Doing.ABANDONING, abandoned=self.abandons(), unread=process.unread)
        after = state.put(at, given_up)
        yield Move((name_of(at), "gets an error, and gives its token up"), after)

    def abandons(self) -> bool:
        """Whether what is handed to a waiter that could not leave the queue is passed on."""
        return True

    def _answered(self, state: State, at: int, command: Command) -> State:
        verb, process = command.verb, state.processes[at]
        repeated = process.doing == Doing.AGAIN
        # The client counts its lease from the moment in which it sent this first.
        over = process.over and (repeated or verb != "acquire")
        state = state.put(at, process._replace(over=over, asked=None))
        after, reply = carried_out(self.scripts, state, command)
        process = after.processes[at]
        if verb == "acquire":
            return after.put(at, self._acquired(process, command, reply))
        if verb == "leave":
            return after.put(at, self.left(process, reply.done))
        if verb == "extend":
            if not reply.done:
                return after.put(at, Process(Doing.DONE))
            if state.server.held != at:
                after = after._replace(wrong=after.wrong or EXTENDED_OWN)
            return after.put(at, process._replace(doing=Doing.HOLDING))
        # What a repetition says is no promise: see "A release whose reply was lost".
        if reply.done and not process.released:
            after = after._replace(wrong=after.wrong or RELEASE_SAYS)
        return after.put(at, Process(Doing.DONE))

    def _acquired(self, process: Process, command: Command, reply: Reply) -> Process:
        if reply.done:
            if process.over:
                # The lease of a grant that came so late is over: it asks again.
                return process._replace(doing=Doing.ASKING, unread=())
            return self._holding(process)
        refused = process._replace(doing=Doing.REFUSED, knows=reply.holder)
        if not command.joins:
            return refused
        return refused._replace(doing=Doing.WAITING, number=reply.number, last=reply.fence)

    def _holding(self, process: Process) -> Process:
        kept = {each: getattr(process, each) for each in ("over", "ousted", "released")}
        return Process(Doing.HOLDING, **kept)

    def _begin(self, state: State, at: int, process: Process) -> Moves:
        """They are all alike, and so begin in the order of their names."""
        if at and state.processes[at - 1].doing == Doing.NEW:
            return
        yield from _as("begin", self._ask(state, at, process))
        # A process whose listener is subscribed asks in the queue at once.
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
        after = cleared.put(at, cleared.processes[at]._replace(doing=then, knows=None))
        what = (name_of(at), "clears the lock of", name_of(knows), "which is dead")
        yield Move(what, after, "timer")

    def _join(self, state: State, at: int, process: Process) -> Moves:
        """It listens, unless it does already, and asks in the queue."""
        listens = state.put(at, process, state.server.heard | {at})
        command = Command("acquire", at, joins=True, number=process.number)
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
        leave = Command("leave", at)
        yield from _as("give up", self._send(state, at, leave, what="gives up, and leaves"))
        if state.losses:
            calm = state._replace(losses=0)
            cut = calm.put(at, process._replace(unread=()), heard - {at})
            yield Move((name_of(at), "loses its subscription"), cut, "fault")
            quits, _ = carried_out(self.scripts, calm, leave)
            quits = quits.put(at, Process(Doing.ABANDONING))
            yield Move((name_of(at), "is interrupted, and leaves"), quits, "fault")

    def _read(self, state: State, at: int, process: Process) -> State:
        message, *others = process.unread
        process = process._replace(unread=tuple(others))
        if message.news == ASK_AGAIN:
            return state.put(at, process._replace(doing=Doing.JOINING))
        if self.is_older(message, process):
            return state.put(at, process)
        if message.news != HANDED:
            return state.put(at, process._replace(knows=message.holder))
        if process.over:
            # It was held up for longer than its lease: it asks once more, at the end of the queue.
            state = state._replace(joined=tuple(each for each in state.joined if each != at))
            late = process._replace(doing=Doing.JOINING, unread=(), knows=None)
            return state.put(at, late._replace(number=None))
        return state.put(at, self._holding(process))

    def is_older(self, message: Message, process: Process) -> bool:
        """Whether it was sent before the last refusal."""
        return message.fence < process.last + (message.news == HANDED)

    def left(self, process: Process, handed: bool) -> Process:
        """The process has left the queue; ``handed``: the lock was handed to it just before."""
        return self._holding(process) if handed else Process(Doing.DONE)

    def _hold(self, state: State, at: int, process: Process) -> Moves:
        yield from self._send(state, at, Command("release", at))
        if not process.over and (process.ousted or state.losses):
            # Otherwise an extension changes nothing.
            yield from _as("extend", self._send(state, at, Command("extend", at)))

    def _abandon(self, state: State, at: int, process: Process) -> Moves:
        after, _ = carried_out(self.scripts, state, Command("release", at))
        after = after.put(at, after.processes[at]._replace(doing=Doing.DONE))
        yield Move((name_of(at), "releases by its token"), after)

    def _listener(self, state: State, at: int, process: Process) -> Moves:
        """What still happens for a token that was given up."""
        if process.unread:
            message, *others = process.unread
            state = state.put(at, process._replace(unread=tuple(others)))
            if message.news == HANDED:
                state, _ = carried_out(self.scripts, state, Command("release", at))
            yield Move((name_of(at), "has a message of a token that it gave up"), state)
        # At a free lock it makes a lease that nobody knows of, as that of any acquire can do.
        if process.asked is not None and (state.server.held, process.asked.joins) != (None, True):
            arrives = state.put(at, process._replace(asked=None))
            if process.asked.joins or process.asked.verb != "acquire":
                arrives, _ = carried_out(self.scripts, arrives, process.asked)
            yield Move((name_of(at), "its last command arrives late"), arrives, "late")

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
    gone = state._replace(deaths=state.deaths - 1)
    after = gone.put(at, Process(Doing.DEAD), state.server.heard - {at})
    yield Move((name_of(at), "dies"), after, "fault")
    if at in state.server.heard:
        after = gone.put(at, Process(Doing.CUT_OFF))
        yield Move((name_of(at), "dies, and the server does not notice"), after, "fault")


def surroundings(scripts: Scripts, state: State) -> Moves:
    """Steps that are no process's own."""
    held = state.server.held
    if held is not None and state.server.ttl:
        # A lease that nobody knows of ends without being counted.
        unhelpful = held == EARLIER or _is_unknown(state.processes[held])
        if state.expiries or unhelpful:
            left = state.expiries if unhelpful else state.expiries - 1
            after = state._replace(server=scripts.expire(state.server), expiries=left, expired=True)
            if held != EARLIER:
                after = after.put(held, after.processes[held]._replace(over=True))
            yield Move(("the lease of", name_of(held), "runs out"), after, "expiry")
    if state.clears and held is not None:
        spent = state._replace(clears=state.clears - 1)
        cleared, _ = carried_out(scripts, spent, Command("clear"))
        yield Move(("an operator clears the lock of", name_of(held)), cleared, "operator")


def _is_unknown(process: Process) -> bool:
    """Whether the process does not know, and is not told, that a lease of it holds the lock."""
    if process.doing == Doing.WAITING:
        return not any(message.news == HANDED for message in process.unread)
    return process.doing in Doing.ENDED
