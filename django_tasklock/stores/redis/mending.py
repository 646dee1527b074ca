"""What to do where somebody has put something else under one of a store's own keys."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from ...describe import printable
from .client import Client

__all__ = ["mend"]

logger = logging.getLogger("django_tasklock")


def mend(client: Client, kinds: Mapping[bytes, bytes], keys: Sequence[bytes]) -> bool:
    """Remove those of the keys beside the locks that hold another type than they should.

    ``kinds`` says which type a key has; a wait queue is a sorted set. They are the store's alone,
    and with such a key no lock could be taken any more: it is as if the server had lost it.
    Returns whether there was one.
    """
    mended = False
    for key in keys:
        kind = kinds.get(key, b"zset" if key.endswith(b" queue") else None)
        found: bytes | None = kind and client.ask("TYPE", [key])
        if found not in (None, kind, b"none"):
            client.ask("UNLINK", [key])
            logger.error(
                "the key %s of the lock store %s held a %s, and was removed",
                printable(key.decode(errors="replace")),
                client.alias,
                found.decode(),
            )
            mended = True
    return mended
