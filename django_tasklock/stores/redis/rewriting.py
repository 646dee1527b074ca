"""A lease in Redis goes on without its process, or in another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...exceptions import StoreUnavailable
from ..base import Grant
from ..record import fence_of, may_rewrite, new_record
from .client import milliseconds
from .lookup import RedisLookup
from .replicas import Replicas
from .script import Script

__all__ = ["RedisRewriting"]

REWRITE = Script("rewrite")


class RedisRewriting(RedisLookup):
    """The part of a store on Redis that replaces the owner of a lease."""

    supports_rewrite = True

    replicas: Replicas

    def rewrite(
        self,
        name: str,
        token: str,
        ttl: float,
        owner: Mapping[str, Any],
        mark: str | None = None,
        proof: Any = None,
    ) -> Grant | None:
        return self._rewrite(name, token, ttl, owner, mark, proof)

    def abandon_to(self, name: str, token: str, ttl: float, owner: Mapping[str, Any]) -> bool:
        return self._rewrite(name, token, ttl, owner, private=True) is not None

    def _rewrite(
        self,
        name: str,
        token: str,
        ttl: float,
        owner: Mapping[str, Any],
        mark: str | None = None,
        proof: Any = None,
        *,
        private: bool = False,
    ) -> Grant | None:
        wait = self.replicas.wait(milliseconds(ttl))
        fence = None
        while fence is None or fence is False:
            before = proof or self._value_of(name, token, private=private)
            record = None if before is None else self.records.record(before)
            if before is None or record is None:
                return None
            value: bytes = self.client.encode(new_record(token, owner, record.at))
            # The value tells whether this very call was made before, and its reply was lost.
            if before != value and not may_rewrite(record.owner, owner, mark):
                return None
            keys = self.keyspace.keys(name)
            args = (before, value, milliseconds(ttl), self.keyspace.member(name))
            fence = self.client.run(REWRITE, keys, args, private=private, wait=wait)
            if not fence and proof is not None:
                return None
        if wait is not None and not wait.enough:
            raise StoreUnavailable(self.alias, f"{name} is not rewritten: {wait}")
        return Grant(fence_of(fence) if isinstance(fence, bytes) else None, value)
