"""The handle of a lease that was detached: what another process needs to adopt it."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, NamedTuple

from .arguments import checked_ttl, is_name, is_token
from .keyed import Keyed
from .owner import is_number_of_adoptions
from .slots import checked_slots
from .tokens import new_token

__all__ = ["Handle", "new_mark", "read_handle"]

VERSION = "1"
DETACHED = "detached:"
"""the beginning of the mark of a detached lease"""
LONGEST_HANDLE_CHARACTERS = 4096
LONGEST_ALIAS_CHARACTERS = 200


class Handle(NamedTuple):
    """What a handle says. It is printable ASCII, fits into JSON and into a message's header."""

    alias: str
    """of the store"""
    name: str
    """`Keyed` where the store's keys depend on the thread"""
    token: str
    fence: int | None
    mark: str
    """``Owner.mark`` of the lease until somebody adopts it"""
    ttl: float
    """seconds that the lease lasts after it is adopted"""
    slots: int | None = None
    """the N of a permit; None for any other lock"""
    adoptions: int = 0
    """how often the lease was adopted before it was detached"""

    def __str__(self) -> str:
        kept = [self.name.key] if isinstance(self.name, Keyed) else []
        text = json.dumps([*self, *kept], separators=(",", ":"), ensure_ascii=False)
        return f"{VERSION}.{urlsafe_b64encode(text.encode()).decode().rstrip('=')}"


def new_mark() -> str:
    """Return a mark that no other handle has."""
    return DETACHED + new_token()


def read_handle(handle: Any) -> Handle:
    """Return what ``handle`` says. Raises `TypeError` if it is no str, and `ValueError` if it is
    not one that `Lease.detach` of this version has returned, or not all of it."""
    if not isinstance(handle, str):
        raise TypeError(f"a handle is the str that detach() returned, not {type(handle).__name__}")
    version, _, text = handle.partition(".")
    if version != VERSION and version.isdigit() and text:
        raise ValueError(f"the handle is of version {version}, and only {VERSION} is known")
    try:
        if version != VERSION or len(handle) > LONGEST_HANDLE_CHARACTERS:
            raise ValueError
        said = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        alias, name, token, fence, mark, ttl, slots, adoptions, *kept = said
        if (
            type(alias) is str
            and 0 < len(alias) <= LONGEST_ALIAS_CHARACTERS
            and type(name) is str
            and is_name(name)
            and type(token) is str
            and is_token(token)
            and (fence is None or (type(fence) is int and fence > 0))
            and type(mark) is str
            and mark.startswith(DETACHED)
            and is_token(mark[len(DETACHED) :])
            and is_number_of_adoptions(adoptions)
            and [type(key) for key in kept] in ([], [str])
        ):
            name = Keyed.of(name, kept[0], alias) if kept else name
            slots = None if slots is None else checked_slots(slots)
            return Handle(alias, name, token, fence, mark, checked_ttl(ttl), slots, adoptions)
    except (ValueError, TypeError, RecursionError):
        pass
    raise ValueError("this is no handle of a detached lease, or not all of one")
