"""The scripts on a real Redis, driven by the commands of the model, and its state in its words."""

from __future__ import annotations

from typing import Any, NamedTuple

from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant, Question
from django_tasklock.stores.records import new_record
from tests.nightly.model.server import Command, Message, Reply, Server
from tests.steps import LONG

__all__ = ["Observed", "RealServer"]

TTL_MS = int(LONG * 1000)
NEWS = {b"+": "+", b"=": "=", b"?": "?"}


class Observed(NamedTuple):
    """What the model says of a server, without its numbers, which differ."""

    held: int | None
    ttl: bool
    queue: tuple[int, ...]
    heard: frozenset[int]

    @classmethod
    def of(cls, server: Server) -> Observed:
        queue = tuple(each.token for each in server.queue)
        return cls(server.held, server.ttl, queue, server.heard)


class RealServer:
    """One lock in the store "default", which is a `RedisStore`, and ``processes`` subscribers."""

    def __init__(self, name: str, processes: int, redis: Any) -> None:
        store: Any = stores["default"]
        self._store = store
        self._redis, self._name = redis, name
        keys = self._store.keys
        self._key, self._queue = keys.of(name).key, keys.of(name).queue
        self._tokens = [f"token-of-{at}".ljust(22, "t") for at in range(processes)]
        self._values = [
            self._store.encoding.value_of(new_record(token, {"task": token}))
            for token in self._tokens
        ]
        self._ids = [f"{at}-{name}".ljust(22, "c").encode()[:22] for at in range(processes)]
        self._members = [
            b"%b%b0:%d:%b" % (token.encode(), channel, TTL_MS, value)
            for token, channel, value in zip(self._tokens, self._ids, self._values, strict=True)
        ]
        self._subscribed = [redis.pubsub() for _ in range(processes)]
        self._heard: set[int] = set()
        self.numbers: dict[int, bytes] = {}
        """of each token, its number in the queue by its last reply"""
        for pubsub in self._subscribed:
            pubsub.subscribe("tests")  # A connection that stays subscribed can be sent a PING.

    def close(self) -> None:
        for pubsub in self._subscribed:
            pubsub.close()

    def listen(self, at: int) -> None:
        self._subscribed[at].subscribe(self._store.keys.channels + self._ids[at])
        self._heard.add(at)
        self.news()

    def hush(self, at: int) -> None:
        self._subscribed[at].unsubscribe(self._store.keys.channels + self._ids[at])
        self._heard.discard(at)
        self.news()

    def expire(self) -> None:
        """As if the ttl had passed: the server ends a key whose moment is in the past."""
        self._redis.pexpireat(self._key, 1)

    def run(self, command: Command) -> Reply:
        """What the script says, without fences and numbers."""
        store, name, token = self._store, self._name, command.token
        if command.verb == "clear":
            word = None if token is None else self._tokens[token]
            return Reply(store.clear(name, word))
        assert token is not None
        word = self._tokens[token]
        if command.verb == "release":
            return Reply(store.release(name, word))
        if command.verb == "extend":
            return Reply(store.extend(name, word, LONG))
        if command.verb == "leave":
            keys = [store.keys.index, store.keys.fences, self._queue, self._key]
            words = [word.encode(), self._members[token], store.keys.of(name).member]
            return Reply(store.client.run("leave", keys, words) is not None)
        joining: tuple[bytes, ...] = ()
        if command.joins:
            number = b"" if command.number is None else self.numbers[token]
            joining = (self._members[token], number)
        question = Question([name], word, TTL_MS, {})
        answer, tail = store.acquire_or_join(question, self._values[token], joining)
        if isinstance(answer, Grant):
            return Reply(True)
        if command.joins:
            self.numbers[token] = b"%d" % int(tail[0])
        return Reply(False, holder=self._tokens.index(answer.holder.token))

    def observed(self) -> Observed:
        pipe = self._redis.pipeline(transaction=False)
        pipe.get(self._key)
        pipe.pttl(self._key)
        pipe.zrange(self._queue, 0, -1)
        pipe.pttl(self._queue)
        pipe.zscore(self._store.keys.index, self._name)
        value, left, members, queue_left, listed = pipe.execute()
        assert value is None or listed is not None, "a lock that is held is listed"
        assert not members or queue_left > 0, "a queue ends by itself"
        held = None if value is None else self._values.index(value)
        queue = tuple(map(self._members.index, members))
        return Observed(held, left > 0, queue, frozenset(self._heard))

    def fence(self) -> int:
        """The last fence."""
        return int(self._redis.hget(self._store.keys.fences, "") or 0)

    def news(self) -> list[Message]:
        """What was published since the last call, without fences."""
        found = []
        for pubsub in self._subscribed:
            pubsub.ping()
            while (message := pubsub.get_message(timeout=30.0))["type"] != "pong":
                if message["type"] == "message":
                    found.append(self._message(message["data"]))
        return found

    def _message(self, data: bytes) -> Message:
        to, what = self._tokens.index(data[:22].decode()), NEWS[data[22:23]]
        holder = {"+": to, "?": None}.get(what)
        if what == "=":
            holder = self._values.index(data.split(b":", 2)[2])
        return Message(to, what, holder)
