"""The steps of processes that take one lock, wait for it in its queue, hold it and release it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.model.canonical import canonical
from tests.model.messages import Command, Message, Reply
from tests.model.search import Move
from tests.model.server import Scripts
from tests.model.state import (
    ABANDONING,
    AGAIN,
    ASKING,
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
    with_process,
)
from tests.model.surroundings import deaths, surroundings
from tests.model.truth import EXTENDED_OWN, RELEASE_SAYS, carried_out

__all__ = ["OPTIONAL", "LockModel"]

OPTIONAL = frozenset({"begin", "timer", "give up", "fault", "expiry", "operator"})
"""the moves that nobody can rely on; with "step", these are all kinds"""

Moves = Iterator[Move]


@dataclass(frozen=True)
class LockModel:
    """What `n` processes may do. ``scripts`` are those of the server, or ones with a fault.

    The methods that a subclass may change are the decisions of a client.
    """

    scripts: Scripts

    def moves(self, state: State) -> Moves:
        for at, process in enumerate(state.processes):
            yield from self._steps[process.doing](self, state, at, process)
            yield from deaths(state, at)
        yield from surroundings(self.scripts, state)

    def canonical_moves(self, state: State) -> Moves:
        for move in self.moves(state):
            yield move._replace(after=canonical(move.after))

    # ------------------------------------------------------------- a command and its reply

    def _send(
        self, state: State, at: int, command: Command, kind: str = "step", what: str = ""
    ) -> Moves:
        """The command runs and is answered; or its reply is lost."""
        who, verb = name_of(at), what or f"sends {command.verb}"
        yield Move((who, verb), self._answered(state, at, command), kind)
        if not state.losses:
            return
        state = state._replace(losses=0)
        process = state.processes[at]
        over = process.over and command.verb != "acquire"
        waits = with_process(state, at, process._replace(doing=AGAIN, asked=command, over=over))
        ran, _ = carried_out(self.scripts, waits, command)
        yield Move((who, verb, "and the reply is lost"), ran, "fault")
        yield Move((who, verb, "and the command is lost"), waits, "fault")
        if state.late:
            waits = waits._replace(on_its_way=command)
            yield Move((who, verb, "and the command is delayed"), waits, "fault")

    def _again(self, state: State, at: int, process: Process) -> Moves:
        """redis-py sends it once more; or the call fails, and the token is given up."""
        command = process.asked
        assert command is not None
        after = self._answered(state, at, command)
        yield Move((name_of(at), f"sends {command.verb} again"), after)
        after = with_process(state, at, Process(ABANDONING), state.server.heard - {at})
        yield Move((name_of(at), "gets an error, and gives its token up"), after)

    def _answered(self, state: State, at: int, command: Command) -> State:
        verb = command.verb
        repeated = state.processes[at].doing == AGAIN
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
                return with_process(after, at, process._replace(doing=HOLDING, asked=None))
            return with_process(after, at, Process(DONE))
        # A repetition finds the lease gone, because it was released, unless it was cleared.
        said = reply.done > 0 or (repeated and reply.done == 0 and state.server.cleared != at)
        # Two that look the same, and are no promise: the lease has run out since, and somebody else
        # got the lock; or it was cleared, and after it another lease was cleared as well.
        cleared = state.server.cleared
        unclear = process.over or (process.ousted and cleared is not None and cleared != at)
        if said and not process.released and not (repeated and unclear):
            after = after._replace(wrong=after.wrong or RELEASE_SAYS)
        return with_process(after, at, Process(DONE))

    def _acquired(self, process: Process, command: Command, reply: Reply) -> Process:
        if reply.done:
            if process.over:
                # The lease of a grant that came so late is over: it asks again.
                return process._replace(doing=ASKING, unread=())
            return self._holding(process)
        refused = process._replace(doing=REFUSED, knows=reply.holder)
        if command.channel is None:
            return refused
        number, since = reply.number, reply.fence or 0
        return refused._replace(doing=WAITING, number=number, before=None, since=since)

    def _holding(self, process: Process) -> Process:
        # Its channel is kept for the next waiter, which ignores the messages to this one.
        return Process(
            HOLDING, process.question,
            over=process.over, ousted=process.ousted, released=process.released,
        )  # fmt: skip

    # ------------------------------------------------------------- what each process does

    def _begin(self, state: State, at: int, process: Process) -> Moves:
        # They are all alike: they begin in the order of their names.
        if at and state.processes[at - 1].doing == NEW:
            return
        yield from _as("begin", self._ask(state, at, process))
        # A process that has waited before asks in the queue at once.
        yield from _as("begin", self._join(state, at, process))

    def _ask(self, state: State, at: int, process: Process) -> Moves:
        yield from self._send(state, at, Command("acquire", at))

    def _refused(self, state: State, at: int, process: Process) -> Moves:
        """It may wait, or leave it at that."""
        yield from _as("begin", self._join(state, at, process))
        yield from self._takes_over(state, at, process, ASKING)

    def _takes_over(self, state: State, at: int, process: Process, then: str) -> Moves:
        """The holder ran on this host, and is dead."""
        knows = process.knows
        if knows is None or (
            knows < len(state.processes) and state.processes[knows].doing not in (DEAD, CUT_OFF)
        ):
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
        yield from self._takes_over(state, at, process, JOINING)
        leave = Command("leave", at, at, process.question, process.before)
        yield from _as("give up", self._send(state, at, leave, what="gives up, and leaves"))
        if state.losses:
            calm = state._replace(losses=0)
            cut = with_process(calm, at, process._replace(unread=()), heard - {at})
            yield Move((name_of(at), "loses its subscription"), cut, "fault")
            if process.knows == state.server.held:
                for move in self._join(calm, at, process):
                    yield move._replace(what=(name_of(at), "asks early"), kind="fault")
            quits = with_process(calm, at, Process(ABANDONING), heard - {at})
            quits, _ = carried_out(self.scripts, quits, leave)
            yield Move((name_of(at), "is interrupted, and leaves"), quits, "fault")

    def _read(self, state: State, at: int, process: Process) -> State:
        message, *others = process.unread
        process = process._replace(unread=tuple(others))
        if not self.answers(message, process):
            return with_process(state, at, process)
        if message.holder is not None:
            return with_process(state, at, process._replace(knows=message.holder))
        if self.is_older(message, process):
            # Its question was refused later than that, when it was sent again: is it held?
            after, outcome = carried_out(
                self.scripts, with_process(state, at, process), Command("acquire", at)
            )
            process = after.processes[at]
            if outcome.reply.done:
                return with_process(after, at, self._holding(process))
            return with_process(after, at, process._replace(knows=outcome.reply.holder))
        if process.over:
            # It was held up for longer than its lease: it asks once more, at the end of the queue.
            late = process._replace(doing=JOINING, member=None, number=None, unread=(), knows=None)
            left = tuple(each for each in state.joined if each != at)
            return with_process(state._replace(joined=left), at, late)
        return with_process(state, at, self._holding(process))

    def answers(self, message: Message, process: Process) -> bool:
        """Whether a message is for the process's last question."""
        return message.question == process.question

    def is_older(self, message: Message, process: Process) -> bool:
        """Whether a hand-over was before the last refusal."""
        return message.fence <= process.since

    def left(self, process: Process, fence: int | None) -> Process:
        """The process has left the queue; ``fence``: the lock was handed to it just before."""
        return Process(DONE) if fence is None else self._holding(process)

    def _hold(self, state: State, at: int, process: Process) -> Moves:
        yield from self._send(state, at, Command("release", at))
        if not process.over and (process.ousted or state.losses):
            # Otherwise an extension changes nothing.
            yield from _as("extend", self._send(state, at, Command("extend", at)))

    def _abandon(self, state: State, at: int, process: Process) -> Moves:
        if state.on_its_way is None or state.on_its_way.token != at:
            after, _ = carried_out(self.scripts, state, Command("release", at))
            yield Move(
                (name_of(at), "releases by its token"), with_process(after, at, Process(DONE))
            )

    def _rest(self, state: State, at: int, process: Process) -> Moves:
        return iter(())

    _steps = {
        NEW: _begin, ASKING: _ask, REFUSED: _refused, JOINING: _join, WAITING: _wait,
        HOLDING: _hold, AGAIN: _again, ABANDONING: _abandon,
        DONE: _rest, DEAD: _rest, CUT_OFF: _rest,
    }  # fmt: skip


def _as(kind: str, moves: Moves) -> Moves:
    for move in moves:
        yield move if move.kind == "fault" else move._replace(kind=kind)
