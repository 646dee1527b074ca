"""What is random: the token of a lease, proof that only its holder has, and pauses. And a handle,
which carries the token of a detached lease to the process that adopts it."""

from __future__ import annotations

import json
import math
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from random import SystemRandom
from secrets import token_urlsafe
from typing import Any, NamedTuple

from .arguments import checked_slots, checked_ttl, is_name, is_token
from .lock_info import LockKeys, kept_key

# characters; 16 random bytes in URL-safe base64 without padding
TOKEN_CHARACTERS = 22
VERSION = "1"
# the beginning of the mark of a detached lease
DETACHED = "detached:"

# For pauses that differ, and for work now and then. The generator of the module `random` belongs to
# the application, which may seed it; and children of a fork would all draw the same from it.
chance = SystemRandom()


# Returns the random proof of one lease: 128 bits, as `TOKEN_CHARACTERS` ASCII characters.
new_token: Callable[[], str] = partial(token_urlsafe, 16)


def token_of(text: str) -> str:
    """Return what identifies a text, in the form of a token."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return urlsafe_b64encode(digest)[:TOKEN_CHARACTERS].decode("ascii")


def token_from(token: str, number: int) -> str:
    """Return the token of another lease, which every process can make that knows this one."""
    return token_of(f"{token} {number}")


class Handle(NamedTuple):
    """What a handle says. It is printable ASCII, fits into JSON and into a message's header.

    ``alias`` is that of the store; ``name`` has its `LockKeys` where they depend on the thread.
    ``mark`` is ``Owner.mark`` of the lease until somebody adopts it; ``ttl`` the seconds that it
    lasts after that; ``slots`` the N of a permit. ``limit`` is when it ends at the latest, in
    seconds since the epoch: another host's clock may differ.
    """

    alias: str
    name: str
    token: str
    fence: int | None
    mark: str
    ttl: float
    slots: int | None = None
    limit: float = math.inf

    def __str__(self) -> str:
        said = [*self[:-1], kept_key(self.name), self.limit]
        text = json.dumps(said, separators=(",", ":"), ensure_ascii=False)
        return f"{VERSION}.{urlsafe_b64encode(text.encode()).decode().rstrip('=')}"


def new_mark() -> str:
    """Return a mark that no other handle has."""
    return DETACHED + new_token()


def read_handle(handle: Any) -> Handle:
    """Return what ``handle`` says. Raises `TypeError` if it is no str, and `ValueError` if it is
    not one that `Lease.detach` of this version has returned, or not all of it."""
    if not isinstance(handle, str):
        raise TypeError(f"a handle must be the str of lease.detach(), not {type(handle).__name__}")
    version, _, text = handle.partition(".")
    if version != VERSION and version.isdigit() and text:
        raise ValueError(f"the handle has version {version}, not {VERSION}: update django-tasklock")
    with suppress(ValueError, TypeError, RecursionError):
        said = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        alias, name, token, fence, mark, ttl, slots, key, limit, *_ = said
        texts = [alias, name, token, mark, key or ""]
        if (
            version == VERSION
            and {type(text) for text in texts} == {str}
            and type(limit) is float
            and alias
            and is_name(name)
            and is_token(token)
            and (fence is None or (type(fence) is int and fence > 0))
            and mark.startswith(DETACHED)
            and is_token(mark.removeprefix(DETACHED))
        ):
            if key:
                name = LockKeys(name, alias, key.encode(), of_all=False)
            slots = None if slots is None else checked_slots(slots)
            return Handle(alias, name, token, fence, mark, checked_ttl(ttl), slots, limit)
    raise ValueError("a handle must be the str that lease.detach() returned, and all of it")
