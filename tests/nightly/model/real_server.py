"""The scripts on a real Redis, driven by the commands of the model, and its state in its words."""

from __future__ import annotations

from hashlib import sha1
from typing import Any, NamedTuple

from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant
from django_tasklock.stores.record import new_record
from tests.nightly.model.server import Command, Message, Server
from tests.steps import LONG

__all__ = ["Observed", "RealServer"]

TTL_MS = int(LONG * 1000)


class Observed(NamedTuple):
    """What the model says of a server, without its numbers, which differ."""

    held: int | None
    ttl: bool
    queue: tuple[tuple[int, int, int], ...]
    """token, channel and question of each member, in order"""
    own_fence: bool
    cleared: int | None
    heard: frozenset[int]

    @classmethod
    def of(cls, server: Server) -> Observed:
        queue = tuple((each.token, each.channel, each.question) for each in server.queue)
        return cls(server.held, server.ttl, queue, server.own_fence, server.cleared, server.heard)


class RealServer:
    """One lock in the store "default", which is a `RedisStore`, and ``processes`` subscribers."""

    def __init__(self, name: str, processes: int) -> None:
        store: Any = stores["default"]
        self._store = store
        self._redis = self._store.client.redis
        self._name = name
        self._key, self._index, self._fences, self._queue = self._store.keyspace.keys(name)
        self._tokens = [f"token-of-{at}".ljust(22, "t") for at in range(processes)]
        self._values = [
            self._store.client.encode(new_record(token, {"task": token})) for token in self._tokens
        ]
        self._ids = [f"channel-of-{at}-{name}".ljust(22, "c")[:22] for at in range(processes)]
        self._subscribed = [self._redis.pubsub() for _ in range(processes)]
        self._heard: set[int] = set()
        self.numbers: dict[int, bytes] = {}
        """of each token, its number in the queue by its last reply"""
        for pubsub in self._subscribed:
            # A connection that stays subscribed can be sent a PING.
            pubsub.subscribe("tests")

    def close(self) -> None:
        for pubsub in self._subscribed:
            pubsub.close()

    def listen(self, at: int) -> None:
        self._subscribed[at].subscribe(self._channel(at))
        self._heard.add(at)
        self.news()

    def hush(self, at: int) -> None:
        self._subscribed[at].unsubscribe(self._channel(at))
        self._heard.discard(at)
        self.news()

    def expire(self) -> None:
        """As if the ttl had passed: the server ends a key whose moment is in the past."""
        self._redis.pexpireat(self._key, 1)

    def run(self, command: Command) -> tuple[int, int | None]:
        """Whether it was done (of a waiter that leaves: the lock was handed to it); who has it."""
        store, name, token = self._store, self._name, command.token
        if command.verb == "clear":
            by = () if token is None else (self._values[token],)
            return int(store._clear(name, *by)), None
        assert token is not None
        value, word = self._values[token], self._tokens[token]
        if command.verb == "release":
            return int(store.release(name, word, value)), None
        if command.verb == "extend":
            return int(store.extend(name, word, LONG, value)), None
        if command.verb == "leave":
            members = (self._member(command, each) for each in (command.question, command.before))
            return int(store.leave_queue(name, value, *members) is not None), None
        if command.channel is None:
            answer = store.ask(name, value, TTL_MS)
        else:
            number = b"" if command.number is None else self.numbers[token]
            member, before = (
                self._member(command, each) for each in (command.question, command.before)
            )
            answer = store.ask(name, value, TTL_MS, member, before, number)
        if isinstance(answer, Grant):
            return 1, None
        refusal, _, number, _ = answer
        if command.channel is not None:
            self.numbers[token] = number
        return 0, self._tokens.index(refusal.holder.token)

    def observed(self) -> Observed:
        pipe = self._redis.pipeline(transaction=False)
        pipe.get(self._key)
        pipe.pttl(self._key)
        pipe.zrange(self._queue, 0, -1)
        pipe.pttl(self._queue)
        pipe.hexists(self._fences, self._name)
        pipe.get(self._store.keyspace.cleared_key(self._name))
        pipe.zscore(self._index, self._name)
        value, left, members, queue_left, own, cleared, listed = pipe.execute()
        held = None if value is None else self._values.index(value)
        digests = [sha1(each, usedforsecurity=False).hexdigest().encode() for each in self._values]
        assert held is None or listed is not None, "a lock that is held is listed"
        assert not members or queue_left > left, "a queue lives for longer than the lease"
        return Observed(
            held, left > 0, tuple(map(self._parsed, members)), bool(own),
            None if cleared is None else digests.index(cleared), frozenset(self._heard),
        )  # fmt: skip

    def fence(self) -> int:
        """The last fence."""
        return int(self._redis.hget(self._fences, "") or 0)

    def news(self) -> list[Message]:
        """What was published since the last call, without fences."""
        found = []
        for at, pubsub in enumerate(self._subscribed):
            pubsub.ping()
            while (message := pubsub.get_message(timeout=30.0))["type"] != "pong":
                if message["type"] == "message":
                    found.append(self._message(at, message["data"]))
        return found

    def _message(self, at: int, data: bytes) -> Message:
        question, _, news = data[22:].partition(b":")
        token = self._tokens.index(data[:22].decode())
        holder = None
        if news.startswith(b"="):
            holder = self._values.index(news.split(b":", 3)[3])
        return Message(at, token, int(question), holder, 0)

    def _channel(self, at: int) -> bytes:
        return bytes(self._store.keyspace.channels) + self._ids[at].encode()

    def _member(self, command: Command, question: int | None) -> bytes:
        if question is None or command.token is None or command.channel is None:
            return b""
        head = self._tokens[command.token] + self._ids[command.channel]
        return head.encode() + b"%d:%d:%b" % (question, TTL_MS, self._values[command.token])

    def _parsed(self, member: bytes) -> tuple[int, int, int]:
        token, channel = member[:22].decode(), member[22:44].decode()
        question = int(member[44:].partition(b":")[0])
        return self._tokens.index(token), self._ids.index(channel), question
