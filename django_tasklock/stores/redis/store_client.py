"""What the parts of a store need of its client, for one server or for a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .replicas import ReplicaWait
from .script import Script

__all__ = ["StoreClient"]


class StoreClient(Protocol):
    """Runs scripts, and encodes records. `ServerClient` says what is meant."""

    alias: str
    encode: Callable[[Any], Any]
    """encodes a record"""
    decode: Callable[[bytes], Any]
    """decodes a value; raises any exception for most values that are no record"""
    mend: Callable[[Sequence[Any]], bool]

    def run(
        self,
        script: Script,
        keys: Sequence[bytes],
        args: Sequence[Any] = (),
        *,
        again: bool = True,
        private: bool = False,
        last: bool = False,
        meanwhile: Callable[[], object] = tuple,
        wait: ReplicaWait | None = None,
    ) -> Any:
        """Run a script in one round trip."""

    def ask(self, command: str, keys: Sequence[bytes] = (), *args: Any) -> Any:
        """Run one plain command."""

    def close_idle(self) -> None:
        """Close the connections that no call uses now."""

    def new_connection(self, **overrides: Any) -> Any:
        """A connection that only the caller uses."""
