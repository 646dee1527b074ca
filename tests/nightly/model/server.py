"""The server: what it keeps for one lock, and its scripts, as functions from one state to the next.

Each takes one step, as each script does. Time is abstract: a key has a ttl or it has none, and
`Scripts.expire` is the moment in which it ends. A process is a number, which is its token as well,
and its channel.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "ASK_AGAIN", "HANDED", "NEXT", "Command", "Message", "Outcome", "Reply", "Scripts", "Server",
]  # fmt: skip

# What a message says: see hand_over.lua.
HANDED, NEXT, ASK_AGAIN = "+", "=", "?"


class Waiting(NamedTuple):
    """A member of the wait queue, which is sorted by the number."""

    number: int
    token: int


class Server(NamedTuple):
    """What the server keeps for one lock."""

    held: int | None = None
    ttl: bool = False
    queue: tuple[Waiting, ...] = ()
    last_number: int = 0
    fence: int = 0
    """of the last lease"""
    heard: frozenset[int] = frozenset()
    """the channels to which somebody is subscribed"""


class Command(NamedTuple):
    """A script with its arguments."""

    verb: str
    token: int | None = None
    joins: bool = False
    number: int | None = None
    """the waiter's number, if it had one"""


class Message(NamedTuple):
    """What is published to a waiter."""

    to: int
    news: str
    holder: int | None = None
    fence: int = 0


class Reply(NamedTuple):
    """What a script returns. ``fence``: of the lease that it is about."""

    done: bool
    fence: int = 0
    holder: int | None = None
    number: int | None = None


class Outcome(NamedTuple):
    server: Server
    reply: Reply
    messages: tuple[Message, ...] = ()


class Scripts:
    """The scripts. What a subclass leaves out is a planted fault."""

    def run(self, server: Server, command: Command) -> Outcome:
        outcome: Outcome = getattr(self, command.verb)(server, command)
        return outcome

    def acquire(self, server: Server, command: Command) -> Outcome:
        token = command.token
        messages: tuple[Message, ...] = ()
        assert token is not None
        if self.is_mine(server, token):
            # Asked again after a lost reply: its ttl begins anew.
            after = self.without(server, token) if command.joins else server
            return Outcome(after._replace(ttl=True), Reply(True, server.fence))
        if server.held is None and server.queue:
            if command.joins:
                server = self.joined(server, command)
                # Who asks keeps its number, also if it is not heard, and so removed just now.
                command = command._replace(number=self.number_of(server, token))
            server, messages = self.hand_over(server)
            if server.held == token:
                return Outcome(server, Reply(True, server.fence), messages)
        if server.held is None:
            server = self.without(server, token) if command.joins else server
            server = self.granted(server, token)
            return Outcome(server, Reply(True, server.fence))
        number = None
        if command.joins:
            server = self.joined(server, command)
            number = self.number_of(server, token)
        return Outcome(server, Reply(False, server.fence, server.held, number), messages)

    def release(self, server: Server, command: Command) -> Outcome:
        if server.held != command.token:
            return Outcome(server, Reply(False))
        return self.ended(server)

    def clear(self, server: Server, command: Command) -> Outcome:
        """With a token: only that lease; put.lua makes the change. Without: what a look found."""
        messages: tuple[Message, ...] = ()
        if server.held is None and command.token is not None:
            # The last lease has expired, and no waiter was told.
            server, messages = self.hand_over(server)
        if server.held is None or command.token not in (None, server.held):
            return Outcome(server, Reply(False), messages)
        outcome = self.ended(server)
        return outcome._replace(messages=messages + outcome.messages)

    def extend(self, server: Server, command: Command) -> Outcome:
        if server.held != command.token:
            return Outcome(server, Reply(False))
        return Outcome(server._replace(ttl=True), Reply(True))

    def leave(self, server: Server, command: Command) -> Outcome:
        tokens = [each.token for each in server.queue]
        if command.token not in tokens:
            handed = server.held == command.token
            return Outcome(server, Reply(handed, server.fence if handed else 0))
        messages: tuple[Message, ...] = ()
        server = self.without(server, command.token)
        if tokens[0] == command.token:
            server, messages = self.told(server)
        return Outcome(server, Reply(False), messages)

    def expire(self, server: Server) -> Server:
        """The ttl of the lock's key has passed."""
        assert server.ttl
        return server._replace(held=None, ttl=False)

    # What they have in common.

    def is_mine(self, server: Server, token: int) -> bool:
        """Whether the asking lease holds the lock already."""
        return server.held == token

    def is_live(self, server: Server, token: int) -> bool:
        """Whether somebody listens on the waiter's channel."""
        return token in server.heard

    def in_order(self, queue: tuple[Waiting, ...]) -> tuple[Waiting, ...]:
        """In which order the queue is served."""
        return queue

    def granted(self, server: Server, token: int) -> Server:
        """The key is set, with its ttl and the next fence."""
        return server._replace(held=token, ttl=True, fence=server.fence + 1)

    def ended(self, server: Server) -> Outcome:
        server, messages = self.hand_over(server._replace(held=None, ttl=False))
        return Outcome(server, Reply(True), messages)

    def joined(self, server: Server, command: Command) -> Server:
        number, token = command.number, command.token
        assert token is not None
        if number is None:
            number = server.last_number + 1
        server = server._replace(last_number=max(server.last_number, number))
        if any(each.token == token for each in server.queue):
            return server
        return server._replace(queue=tuple(sorted((*server.queue, Waiting(number, token)))))

    def hand_over(self, server: Server) -> tuple[Server, tuple[Message, ...]]:
        server, found = self.listening(server, 2)
        if not found:
            return server, ()
        first = found[0]
        server = self.granted(self.without(server, first), first)
        news = tuple(Message(each, NEXT, first, server.fence) for each in found[1:])
        return server, (*news, Message(first, HANDED, first, server.fence))

    def told(self, server: Server) -> tuple[Server, tuple[Message, ...]]:
        """Who has become the next one gets to know the holder; or asks again, if there is none."""
        server, found = self.listening(server, 1)
        news = ASK_AGAIN if server.held is None else NEXT
        fence = 0 if server.held is None else server.fence
        return server, tuple(Message(each, news, server.held, fence) for each in found)

    def listening(self, server: Server, most: int) -> tuple[Server, list[int]]:
        """The first waiters that somebody listens for; the others before them are removed."""
        found: list[int] = []
        for each in self.in_order(server.queue):
            if len(found) == most:
                break
            if self.is_live(server, each.token):
                found.append(each.token)
            else:
                server = self.without(server, each.token)
        return server, found

    @staticmethod
    def number_of(server: Server, token: int) -> int:
        return next(each.number for each in server.queue if each.token == token)

    @staticmethod
    def without(server: Server, token: int | None) -> Server:
        return server._replace(queue=tuple(each for each in server.queue if each.token != token))
