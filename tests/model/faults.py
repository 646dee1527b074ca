"""Faults that are planted in the model: each must be found, by the name of what it breaks."""

from __future__ import annotations

from tests.model.locks import LockModel
from tests.model.messages import Command, Message, Outcome, Reply, Server, Waiting
from tests.model.server import Scripts
from tests.model.state import DONE, Process

__all__ = [
    "ExtendsWithoutCompare", "ForgetsItsOwnToken", "GrantsWithTheSameFence", "HandsOverUnseen",
    "HandsOverWithoutTtl", "LeasesNeverEnd", "LeavesWithoutTheLock", "ReleasesInSilence",
    "ReleasesWithoutCompare", "ServesLastFirst", "TellsNoSuccessor", "TrustsOldMessages",
    "WaitsAtTheEndAgain",
]  # fmt: skip


class ReleasesWithoutCompare(Scripts):
    def release(self, server: Server, command: Command) -> Outcome:
        return self._ended(server) if server.held is not None else Outcome(server, Reply(0))


class ExtendsWithoutCompare(Scripts):
    def extend(self, server: Server, command: Command) -> Outcome:
        return Outcome(server, Reply(int(server.held is not None)))


class HandsOverUnseen(Scripts):
    """It does not look whether the waiter is subscribed."""

    def is_live(self, server: Server, entry: Waiting) -> bool:
        return True


class ServesLastFirst(Scripts):
    def in_order(self, queue: tuple[Waiting, ...]) -> tuple[Waiting, ...]:
        return queue[::-1]


class ForgetsItsOwnToken(Scripts):
    """An acquire that is sent again finds the lock held, by itself."""

    def is_mine(self, server: Server, token: int) -> bool:
        return False


class ReleasesInSilence(Scripts):
    """The lock is free, and no waiter is told."""

    def release(self, server: Server, command: Command) -> Outcome:
        if server.held != command.token:
            return super().release(server, command)
        return Outcome(self.over(server), Reply(1))


class HandsOverWithoutTtl(Scripts):
    def hand_over(
        self, server: Server, me: Waiting | None
    ) -> tuple[Server, Waiting | None, tuple[Message, ...]]:
        server, first, news = super().hand_over(server, me)
        return server._replace(ttl=first is None and server.ttl), first, news


class GrantsWithTheSameFence(Scripts):
    def granted(self, server: Server, token: int) -> Server:
        after = super().granted(server, token)
        return after._replace(fence=max(1, server.fence))


class LeasesNeverEnd(Scripts):
    def expire(self, server: Server) -> Server:
        return server


class TellsNoSuccessor(Scripts):
    """Who leaves as the next one does not tell the one behind who holds the lock."""

    def leave(self, server: Server, command: Command) -> Outcome:
        return super().leave(server, command)._replace(messages=())


class WaitsAtTheEndAgain(Scripts):
    """A waiter that asks again loses its position."""

    def joined(self, server: Server, command: Command) -> tuple[Server, Waiting]:
        before = self.member(server, command.token, command.before)
        server = self.without(server, before)
        return super().joined(server, command._replace(before=None, number=None))


class LeavesWithoutTheLock(LockModel):
    """Who gives up does not take, or pass on, the lock that it was handed just before."""

    def left(self, process: Process, fence: int | None) -> Process:
        return Process(DONE)


class TrustsOldMessages(LockModel):
    """A hand-over from before the last refusal counts."""

    def is_older(self, message: Message, process: Process) -> bool:
        return False
