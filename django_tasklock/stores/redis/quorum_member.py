"""What a `QuorumStore` asks of a Redis that is one of its members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..base import Grant, Memory, Refusal
from ..membership import Begun
from ..record import new_record
from .begun import RedisBegun
from .client import Client, milliseconds
from .leases import ACQUIRE, RELEASE, RedisLeases
from .script import Script
from .server_memory import memory_of

__all__ = ["RedisMember"]

RAISE_FENCE = Script("raise_fence")
ASK_MEMORY = Script("ask_memory")


class RedisMember(RedisLeases):
    """The part of `RedisStore` that only a `QuorumStore` uses."""

    client: Client
    raises_fences = True

    def acquire_above(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any], floor: int
    ) -> Grant | Refusal:
        return self.acquire_with_note(name, token, ttl, owner, None, floor)

    def begin_acquire_above(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any], floor: int
    ) -> Begun[Grant | Refusal] | None:
        if self.replicas.needed or not self._is_ours(
            "acquire", "acquire_with_note", "acquire_above"
        ):
            return None
        value, ttl_ms = self.client.encode(new_record(token, owner)), milliseconds(ttl)
        none = b""  # no waiter, and no note
        args = (value, ttl_ms, self.keyspace.member(name), *5 * (none,), floor)
        sent = self.client.begin(ACQUIRE, self.keyspace.keys(name), args, again=True)
        if sent is None:
            return None

        def said(reply: Any) -> Grant | Refusal | None:
            answer = self.answer(name, value, reply, noted=False)
            own = isinstance(answer, Refusal) and answer.holder.token == token
            return None if own else answer

        def otherwise(error: BaseException | None) -> Grant | Refusal:
            self._raise_if_silent(error, ACQUIRE, args)
            return self._acquire(name, token, value, ttl_ms, None, floor)

        return RedisBegun(sent, said, otherwise)

    def begin_release(self, name: str, token: str, proof: Any) -> Begun[bool] | None:
        # The messages to waiters of this process are another matter: see `release_with_note`.
        if proof is None or self.subscriber_of(name).in_use():
            return None
        if not self._is_ours("release", "release_with_note"):
            return None
        keys, args = self.keyspace.keys(name), (proof, self.keyspace.member(name))
        sent = self.client.begin(RELEASE, keys, args, again=False)
        if sent is None:
            return None

        def otherwise(error: BaseException | None) -> bool:
            self._raise_if_silent(error, RELEASE, args)
            if isinstance(error, RedisConnectionError):
                return self._release_again(name, proof, keys, args)
            return self.release(name, token, proof)

        return RedisBegun(sent, _is_positive, otherwise)

    def raise_fence(self, name: str, token: str, fence: int, proof: Any = None) -> bool:
        value = proof or self._value_of(name, token)
        keys = (self.keyspace.key(name).encode(), self.keyspace.fences)
        return value is not None and bool(
            self.client.run(RAISE_FENCE, keys, (value, self.keyspace.member(name), fence))
        )

    def memory(self) -> Memory | None:
        return memory_of(self.client.run(ASK_MEMORY, (self.keyspace.fences,)))

    def _is_ours(self, *verbs: str) -> bool:
        """Whether a subclass of a project has none of these verbs, which the halves would pass."""
        return all(getattr(type(self), verb) is getattr(RedisMember, verb) for verb in verbs)

    def _raise_if_silent(
        self, error: BaseException | None, script: Script, args: Sequence[Any]
    ) -> None:
        """Raise `StoreUnavailable` for a server that was waited for already."""
        if isinstance(error, RedisTimeoutError):
            raise self.client.unavailable(error, script, args) from error


def _is_positive(done: bytes) -> bool:
    return int(done) > 0
