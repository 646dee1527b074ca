"""The permits of a name (``slots=N``) that are held, and who waits for one."""

from __future__ import annotations

from collections.abc import Sequence

from .._engine.service import LockService
from .._values.arguments import LONGEST_NAME_CHARACTERS
from .._values.describe import age, duration, place, printable
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from .._values.slots import LARGEST_SLOTS, base_of, permit_name
from ..exceptions import ListingNotSupported

__all__ = ["held_permits", "in_words"]

PROBED_PERMITS = 10
"""on a store that cannot list: how many permits are looked at, or as many as a holder says there
are"""


def held_permits(service: LockService, name: str) -> list[LockInfo]:
    """Return the held permits of ``name``, by number. Raises `StoreUnavailable`."""
    if len(permit_name(name, LARGEST_SLOTS)) > LONGEST_NAME_CHARACTERS:
        return []  # No permit has so long a name.
    try:
        found = service.list(f"{name}#")
    except ListingNotSupported:
        found = _probed(service, name)
    held = [info for info in found if info.slot and base_of(info.name, info.owner.slots) == name]
    return sorted(held, key=lambda info: info.slot or 0)


def in_words(permits: list[LockInfo], waiting: Sequence[Owner]) -> str:
    """Return the permits and their holders, and how many wait for how long, as one line."""
    each = ", ".join(f"#{info.slot} by {place(info.owner)}" for info in permits)
    count = f"{len(permits)} permit{'' if len(permits) == 1 else 's'}"
    since = waiting[0].waiting_since if waiting else None
    longest = "" if since is None else f", the longest for {duration(age(since))}"
    return printable(f"{count} ({each}); {len(waiting)} waiting{longest}")


def _probed(service: LockService, name: str) -> list[LockInfo]:
    found: list[LockInfo] = []
    last, slot = PROBED_PERMITS, 0
    while slot < last:
        slot += 1
        info = service.get(permit_name(name, slot))
        if info is not None:
            found.append(info)
            last = max(last, info.owner.slots or 0)
    return found
