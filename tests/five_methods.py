"""The least that a store can be: the five required methods, over a dict behind a lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

from django_tasklock import LockInfo, Owner
from django_tasklock.conf import StoreSettings
from django_tasklock.stores.base import BaseStore, Grant, Refusal


class Held(NamedTuple):
    token: str
    ends: float
    owner: Owner
    began: datetime


class FiveMethodStore(BaseStore):
    atomic_release = True

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self._guard = threading.RLock()
        self._leases: dict[str, Held] = {}

    def acquire(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any]
    ) -> Grant | Refusal:
        with self._guard:
            holder = self.get(name)
            if holder is not None and holder.token != token:
                return Refusal(holder)
            began = datetime.now(timezone.utc)
            ends = time.monotonic() + ttl
            self._leases[name] = Held(token, ends, Owner.from_record(owner), began)
            return Grant()

    def extend(self, name: str, token: str, ttl: float, proof: Any = None) -> bool:
        with self._guard:
            if not self._holds(name, token):
                return False
            self._leases[name] = self._leases[name]._replace(ends=time.monotonic() + ttl)
            return True

    def release(self, name: str, token: str, proof: Any = None) -> bool:
        return self.clear(name, token)

    def clear(self, name: str, token: str | None = None) -> bool:
        with self._guard:
            if self.get(name) is None or (token is not None and not self._holds(name, token)):
                return False
            del self._leases[name]
            return True

    def get(self, name: str) -> LockInfo | None:
        held = self._leases.get(name)
        left = 0.0 if held is None else held.ends - time.monotonic()
        if held is None or left <= 0:
            return None
        return LockInfo(name, left, held.began, held.token, held.owner, self.alias, name)

    def _holds(self, name: str, token: str) -> bool:
        holder = self.get(name)
        return holder is not None and holder.token == token
