"""Taking one of several locks of one server, or all of them, in one round trip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...exceptions import StoreUnavailable
from ..base import AllHeld, Grant, Note, OneOf, Refusal
from ..record import new_record
from .client import ReplyLost, milliseconds
from .notes import seconds
from .quorum_member import RedisMember
from .script import Script

__all__ = ["RedisAnyOf"]

ACQUIRE_ALL = Script("acquire_all")
ACQUIRE_ANY = Script("acquire_any")


class RedisAnyOf(RedisMember):
    """The part of `RedisStore` that takes one of several locks, or all of them. On a cluster they
    have no common node, so its store has the defaults."""

    def acquire_all(
        self, tokens: Mapping[str, str], ttl: float, owner: Mapping[str, Any]
    ) -> Sequence[Grant] | Refusal | None:
        own = (getattr(type(self), verb) for verb in ("acquire", "acquire_with_note"))
        if self.replicas.needed or tuple(own) != (
            RedisMember.acquire,
            RedisMember.acquire_with_note,
        ):
            return None  # What a project's subclass has made of these verbs would be passed.
        names = list(tokens)
        values = [self.client.encode(new_record(token, owner)) for token in tokens.values()]
        keys = [self.keyspace.index, self.keyspace.fences]
        for name in names:
            key, _, _, queue = self.keyspace.keys(name)
            keys += key, queue
        args = (milliseconds(ttl), len(names), *values, *map(self.keyspace.member, names))
        repeated = False
        try:
            reply = self.client.run(ACQUIRE_ALL, keys, args, again=False)
        except ReplyLost:
            repeated, reply = True, self.client.run(ACQUIRE_ALL, keys, args)
        granted, first, *holder = reply
        if granted:
            return [Grant(int(fence), proof) for fence, proof in zip(first, values, strict=True)]
        if repeated:
            # If only the reply was lost, all were granted before, and one was taken since.
            for name, value in zip(names, values, strict=True):
                self.release(name, "", value)
        held, left = holder
        return Refusal(self.records.info(names[int(first) - 1], held, seconds(left)))

    def acquire_any(
        self,
        names: Sequence[str],
        gate: str | None,
        token: str,
        ttl: float,
        owner: Mapping[str, Any],
        note: Note | None = None,
    ) -> OneOf | AllHeld:
        value, ttl_ms = self.client.encode(new_record(token, owner)), milliseconds(ttl)
        keys = [self.keyspace.index, self.keyspace.fences]
        for name in names:
            key, _, _, queue = self.keyspace.keys(name)
            keys += key, queue
        # Only who has a task id asks who holds the others: a run of the same message may.
        look = "1" if owner.get("task_id") is not None else ""
        members = map(self.keyspace.member, names)
        args: list[Any] = [value, ttl_ms, len(names), look, "", "", *members]
        if gate is not None:
            keys.append(self.keyspace.keys(gate)[0])
        if note is not None:
            keys.append(self.keyspace.note_key(note.key))
            args[4:6] = note.text, milliseconds(note.ttl)
        wait = self.replicas.wait(ttl_ms)
        reply = self.client.run(ACQUIRE_ANY, keys, args, wait=wait)
        granted, first, second, rest = reply
        holders = tuple(
            self.records.info(names[int(number) - 1], held, seconds(left))
            for number, held, left in zip(rest[::3], rest[1::3], rest[2::3], strict=True)
        )
        if not granted:
            if gate is None or first is None:
                return AllHeld(holders, None)
            return AllHeld(holders, self.records.info(gate, first, seconds(second)))
        name = names[int(first) - 1]
        if wait is not None and not wait.enough:
            # No answer: the caller, which gets no lease, abandons it.
            with suppress(StoreUnavailable):
                self.release(name, "", value)
            raise StoreUnavailable(self.alias, f"{name} is not acquired: {wait}")
        grant = Grant(int(second), value, None, note is not None and granted == 1)
        return OneOf(name, grant, holders if look else None)
