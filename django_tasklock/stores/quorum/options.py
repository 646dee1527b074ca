"""The options of a `QuorumStore`, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..._values.arguments import checked_ttl
from ...conf import StoreSettings
from ...exceptions import InvalidLockConfig

__all__ = ["LEAST_MEMBERS", "OPTIONS", "QuorumOptions", "checked_options"]

LEAST_MEMBERS = 3
DEFAULT_MEMBER_TIMEOUT_SECONDS = 1.0
DEFAULT_LONGEST_TTL_SECONDS = 300.0
DEFAULT_DRIFT = 0.01
DEFAULT_THREADS = 8
OPTIONS = frozenset({"STORES", "MEMBER_TIMEOUT", "LONGEST_TTL", "PERSISTENT", "DRIFT", "THREADS"})


@dataclass(frozen=True, slots=True)
class QuorumOptions:
    """The options, with their defaults."""

    aliases: tuple[str, ...]
    """of the members"""
    member_timeout: float
    """seconds after which a member that has not answered does not count"""
    longest_ttl: float | None
    """seconds that a lease may last, and for which a member that has lost its data grants none;
    None: any ttl, and it grants leases at once"""
    persistent: frozenset[str]
    """members whose server loses nothing when it is restarted"""
    drift: float
    """by what share the clocks of the members may be too fast"""
    threads: int
    """how many calls one process makes to one member at the same time, at most"""


def checked_options(settings: StoreSettings) -> QuorumOptions:
    """The options of a store. Raises `InvalidLockConfig`."""
    options = settings.options

    def wrong(text: str) -> InvalidLockConfig:
        return InvalidLockConfig(f"the lock store {settings.alias!r}: {text}")

    def seconds(name: str, default: float) -> float:
        try:
            return checked_ttl(options.get(name, default))
        except (TypeError, ValueError) as error:
            raise wrong(
                f"the option {name} is a number of seconds, not {options[name]!r}"
            ) from error

    aliases = _aliases(options.get("STORES"))
    if aliases is None:
        raise wrong("the option STORES is a list of at least three aliases of TASKLOCK")
    if len(set(aliases)) < len(aliases):
        twice = sorted({alias for alias in aliases if aliases.count(alias) > 1})
        raise wrong(f"STORES names {', '.join(map(repr, twice))} twice: each has one vote")
    if len(aliases) < LEAST_MEMBERS:
        raise wrong(
            f"STORES names {len(aliases)} of at least {LEAST_MEMBERS} stores: the majority of two "
            "is both of them, so the death of either would stop all locks"
        )
    persistent = _aliases(options.get("PERSISTENT", ()))
    if persistent is None or set(persistent) - set(aliases):
        raise wrong("the option PERSISTENT is a list of some of the aliases in STORES")
    longest: float | None = None
    if options.get("LONGEST_TTL", 0) is not None:
        longest = seconds("LONGEST_TTL", DEFAULT_LONGEST_TTL_SECONDS)
        if settings.ttl > longest:
            raise wrong(f"its TTL is {settings.ttl:g} s, and LONGEST_TTL {longest:g} s")
    drift: Any = options.get("DRIFT", DEFAULT_DRIFT)
    if isinstance(drift, bool) or not isinstance(drift, int | float) or not 0 <= drift < 1:
        raise wrong(f"the option DRIFT is a share of the ttl from 0 to 1, not {drift!r}")
    threads: Any = options.get("THREADS", DEFAULT_THREADS)
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise wrong(f"the option THREADS is a whole number of at least 1, not {threads!r}")
    return QuorumOptions(
        aliases=tuple(aliases),
        member_timeout=seconds("MEMBER_TIMEOUT", DEFAULT_MEMBER_TIMEOUT_SECONDS),
        longest_ttl=longest,
        persistent=frozenset(persistent),
        drift=float(drift),
        threads=threads,
    )


def _aliases(given: Any) -> Sequence[str] | None:
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        return None
    return given
