"""What a `QuorumStore` asks of a Redis that is one of its members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..base import Grant, Memory, Refusal
from .client import Client
from .leases import RedisLeases
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

    def raise_fence(self, name: str, token: str, fence: int, proof: Any = None) -> bool:
        value = proof or self._value_of(name, token)
        keys = (self.keyspace.key(name).encode(), self.keyspace.fences)
        return value is not None and bool(
            self.client.run(RAISE_FENCE, keys, (value, self.keyspace.member(name), fence))
        )

    def memory(self) -> Memory | None:
        return memory_of(self.client.run(ASK_MEMORY, (self.keyspace.fences,)))
