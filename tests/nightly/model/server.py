"""The server: what it keeps for one lock, and its scripts, as functions from one state to the next.

Each takes one step, as each script does. Time is abstract: a key has a ttl or it has none, and
`Scripts.expire` is the moment in which it ends.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["NOTIFIED_WAITERS", "Command", "Message", "Outcome", "Reply", "Scripts", "Server"]


class Waiting(NamedTuple):
    """A member of the wait queue. The queue is sorted by the number."""

    number: int
    token: int
    channel: int
    question: int


class Server(NamedTuple):
    """What the server keeps for one lock."""

    held: int | None = None
    """the token of the lease that holds the lock"""
    ttl: bool = False
    """whether the lock's key has one"""
    queue: tuple[Waiting, ...] = ()
    last_number: int = 0
    fence: int = 0
    """the last fence"""
    own_fence: bool = False
    """whether the lock has a fence of its own, which a release removes and an expiry does not"""
    cleared: int | None = None
    """the token that was cleared last"""
    heard: frozenset[int] = frozenset()
    """the channels to which somebody is subscribed"""


class Command(NamedTuple):
    """A script with its arguments."""

    verb: str
    token: int | None = None
    channel: int | None = None
    """of a waiter; None: it does not join the queue"""
    question: int = 0
    before: int | None = None
    """the waiter's question before this one"""
    number: int | None = None
    """the waiter's number, if it had one"""


class Message(NamedTuple):
    """What is published to a waiter: who holds the lock, or None, and it is handed over."""

    channel: int
    token: int
    question: int
    holder: int | None
    fence: int


class Reply(NamedTuple):
    """What a script returns. ``done`` is 1, or 0 (of a release also -1)."""

    done: int
    fence: int | None = None
    """of the lease; of a refusal, the last fence"""
    holder: int | None = None
    number: int | None = None


class Outcome(NamedTuple):
    server: Server
    reply: Reply
    messages: tuple[Message, ...] = ()


NOTIFIED_WAITERS = 1
"""notify_waiters.lua has it too"""


Heard = tuple[Server, list[Waiting]]
HandedOver = tuple[Server, Waiting | None, tuple[Message, ...]]


class Scripts:
    """The scripts. What a subclass leaves out is a planted fault."""

    def run(self, server: Server, command: Command) -> Outcome:
        outcome: Outcome = getattr(self, command.verb)(server, command)
        return outcome

    def is_live(self, server: Server, entry: Waiting) -> bool:
        """Whether somebody listens on the waiter's channel."""
        return entry.channel in server.heard

    def in_order(self, queue: tuple[Waiting, ...]) -> tuple[Waiting, ...]:
        """In which order the queue is served."""
        return queue

    def granted(self, server: Server, token: int) -> Server:
        """The key is set, with its ttl and the next fence."""
        return server._replace(held=token, ttl=True, fence=server.fence + 1, own_fence=True)

    def over(self, server: Server) -> Server:
        return server._replace(held=None, ttl=False, own_fence=False)

    def listening(self, server: Server, most: int, me: Waiting | None) -> Heard:
        found: list[Waiting] = []
        for entry in self.in_order(server.queue):
            if len(found) == most:
                break
            if entry == me or self.is_live(server, entry):
                found.append(entry)
            else:
                server = self.without(server, entry)
        return server, found

    @staticmethod
    def without(server: Server, *entries: Waiting | None) -> Server:
        queue = tuple(each for each in server.queue if each not in entries)
        return server._replace(queue=queue)

    @staticmethod
    def member(server: Server, token: int | None, question: int | None) -> Waiting | None:
        found = (each for each in server.queue if (each.token, each.question) == (token, question))
        return next(found, None)

    def hand_over(self, server: Server, me: Waiting | None) -> HandedOver:
        server, found = self.listening(server, 1 + NOTIFIED_WAITERS, me)
        if not found:
            return server, None, ()
        first = found[0]
        server = self.granted(self.without(server, first), first.token)
        news = tuple(self.news(each, server.held, server.fence) for each in found[1:])
        if first != me:
            news += (self.news(first, None, server.fence),)
        return server, first, news

    @staticmethod
    def news(entry: Waiting, holder: int | None, fence: int) -> Message:
        return Message(entry.channel, entry.token, entry.question, holder, fence)

    def joined(self, server: Server, command: Command) -> tuple[Server, Waiting]:
        number = command.number
        before = self.member(server, command.token, command.before)
        if before is not None:
            number = before.number
            server = self.without(server, before)
        if number is None:
            number = server.last_number + 1
        server = server._replace(last_number=max(server.last_number, number))
        assert command.token is not None
        assert command.channel is not None
        entry = self.member(server, command.token, command.question)
        if entry is None:
            entry = Waiting(number, command.token, command.channel, command.question)
            server = server._replace(queue=tuple(sorted((*server.queue, entry))))
        return server, entry

    def acquire(self, server: Server, command: Command) -> Outcome:
        token, waits = command.token, command.channel is not None
        assert token is not None
        if server.held is None:
            me: Waiting | None = None
            news: tuple[Message, ...] = ()
            if server.queue:
                if waits:
                    server, me = self.joined(server, command)
                server, first, news = self.hand_over(server, me)
                if first is not None and first != me:
                    return self._held(server, command, news)
                if first is not None:
                    return Outcome(server, Reply(1, server.fence), news)
            server = self.granted(server, token)
            return Outcome(server, Reply(1, server.fence), news)
        if self.is_mine(server, token):
            # Asked again after a lost reply: its ttl begins anew, with a new fence.
            if waits:
                server = self.without(
                    server,
                    self.member(server, token, command.question),
                    self.member(server, token, command.before),
                )
            server = self.granted(server, token)
            return Outcome(server, Reply(1, server.fence))
        return self._held(server, command, ())

    def is_mine(self, server: Server, token: int) -> bool:
        """Whether the asking lease holds the lock already: what makes acquire idempotent."""
        return server.held == token

    def _held(self, server: Server, command: Command, news: tuple[Message, ...]) -> Outcome:
        number = None
        if command.channel is not None:
            server, entry = self.joined(server, command)
            number = entry.number
        return Outcome(server, Reply(0, server.fence, server.held, number), news)

    def release(self, server: Server, command: Command) -> Outcome:
        if server.held != command.token:
            expired = server.held is None and (server.own_fence or not server.fence)
            return Outcome(server, Reply(-1 if expired else 0))
        return self._ended(server)

    def clear(self, server: Server, command: Command) -> Outcome:
        """With a token: only that lease."""
        held = server.held
        if held is None or command.token not in (None, held):
            return Outcome(server, Reply(0))
        return self._ended(server._replace(cleared=held))

    def _ended(self, server: Server) -> Outcome:
        server, first, news = self.hand_over(server, None)
        return Outcome(self.over(server) if first is None else server, Reply(1), news)

    def extend(self, server: Server, command: Command) -> Outcome:
        if server.held != command.token:
            return Outcome(server, Reply(0))
        return Outcome(server._replace(ttl=True), Reply(1))

    def leave(self, server: Server, command: Command) -> Outcome:
        asked = (command.question, command.before)
        members = [self.member(server, command.token, question) for question in asked]
        mine = next((each for each in members if each is not None), None)
        if mine is None:
            handed = server.held == command.token
            return Outcome(server, Reply(0, server.fence if handed else None))
        rank = server.queue.index(mine)
        server = self.without(server, *members)
        news: tuple[Message, ...] = ()
        if server.held is not None and server.own_fence and rank < NOTIFIED_WAITERS:
            server, news = self.notified(server)
        return Outcome(server, Reply(0), news)

    def notified(self, server: Server) -> tuple[Server, tuple[Message, ...]]:
        """Who has become the next one gets to know the holder."""
        server, found = self.listening(server, NOTIFIED_WAITERS, None)
        return server, tuple(self.news(each, server.held, server.fence) for each in found)

    def expire(self, server: Server) -> Server:
        """The ttl of the lock's key has passed."""
        assert server.ttl
        return server._replace(held=None, ttl=False)
