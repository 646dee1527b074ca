"""Removing what somebody else has put under one of a store's own keys."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..._values.words import printable
from .keyspace import Keyspace
from .store_client import StoreClient

__all__ = ["mend"]

logger = logging.getLogger("django_tasklock")


def mend(client: StoreClient, keyspace: Keyspace, keys: Sequence[bytes]) -> bool:
    """Remove those of a script's keys that are the store's alone and have a wrong type.

    No lock could be taken any more otherwise. It is as if the server had lost the key. The key of
    a lock itself is never removed. Returns whether a key was removed.
    """
    mended = False
    for key in keys:
        expected = keyspace.type_of(key)
        found: bytes | None = expected and client.ask("TYPE", [key])
        if found not in (None, expected, b"none"):
            client.ask("UNLINK", [key])
            logger.error(
                "the key %s of the lock store %s held a %s, and was removed",
                printable(key.decode(errors="replace")),
                client.alias,
                found.decode(),
            )
            mended = True
    return mended
