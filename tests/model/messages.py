"""What the server keeps, what it is sent, and what it says."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Command", "Message", "Outcome", "Reply", "Server", "Waiting"]


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
    """What is published to a waiter."""

    channel: int
    token: int
    question: int
    holder: int | None
    """None: the lock is handed over; otherwise who holds it"""
    fence: int


class Reply(NamedTuple):
    """What a script returns."""

    done: int
    """1: granted, released, extended, cleared; 0 (or -1 of a release) otherwise"""
    fence: int | None = None
    """of the lease; of a refusal, the last fence"""
    holder: int | None = None
    number: int | None = None


class Outcome(NamedTuple):
    server: Server
    reply: Reply
    messages: tuple[Message, ...] = ()
