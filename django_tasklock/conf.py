"""The settings, read live: ``TASKLOCK``, one dict of aliases in the style of ``CACHES``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings

from ._values.arguments import checked_ttl
from .exceptions import InvalidLockConfig

__all__ = ["DEFAULT_ALIAS", "SETTING", "StoreSettings", "configured_stores"]

SETTING = "TASKLOCK"
DEFAULT_ALIAS = "default"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The settings of one store, after they were checked.

    ``backend``: the dotted path of the store's class; None: the class of the cache decides.
    ``cache``: an alias of ``CACHES``. ``key_prefix``: the beginning of the locks' keys. ``ttl``:
    how many seconds a lease lasts where the caller does not say. ``options``: the store's own.
    """

    alias: str
    backend: str | None = None
    cache: str = "default"
    key_prefix: str = "lock"
    ttl: float = 60.0
    options: Mapping[str, Any] = field(default_factory=dict)


_FIELDS_BY_KEY = {
    "BACKEND": "backend",
    "CACHE": "cache",
    "KEY_PREFIX": "key_prefix",
    "TTL": "ttl",
    "OPTIONS": "options",
}


def configured_stores() -> dict[str, StoreSettings]:
    """Return the settings of every store, by alias.

    Without ``TASKLOCK`` there is one store, "default", on the default cache. Raises
    `InvalidLockConfig` for an unknown key and for a wrong value.
    """
    configured = getattr(settings, SETTING, None)
    if configured is None:
        configured = {DEFAULT_ALIAS: {}}
    if not isinstance(configured, Mapping):
        raise InvalidLockConfig(f"{SETTING} is a dict of store aliases, not {configured!r}")
    return {alias: _checked(alias, given) for alias, given in configured.items()}


def _checked(alias: Any, given: Any) -> StoreSettings:
    where = f"{SETTING}[{alias!r}]"
    if not isinstance(given, Mapping):
        raise InvalidLockConfig(f"{where} is a dict, not {given!r}")
    unknown = sorted(set(map(str, given)) - set(_FIELDS_BY_KEY))
    if unknown:
        raise InvalidLockConfig(
            f"{where} has no setting {', '.join(unknown)}; there are {', '.join(_FIELDS_BY_KEY)}"
        )
    values = {_FIELDS_BY_KEY[key]: value for key, value in given.items()}
    for key, kind in (("cache", str), ("key_prefix", str), ("options", Mapping)):
        if key in values and not isinstance(values[key], kind):
            raise InvalidLockConfig(
                f"{where}[{key.upper()!r}] is a {kind.__name__}, not {values[key]!r}"
            )
    if not isinstance(values.get("backend"), str | None):
        raise InvalidLockConfig(f"{where}['BACKEND'] is a dotted path, not {values['backend']!r}")
    try:
        if "ttl" in values:
            values["ttl"] = checked_ttl(values["ttl"])
    except (TypeError, ValueError) as error:
        raise InvalidLockConfig(f"{where}['TTL']: {error}") from error
    return StoreSettings(alias=str(alias), **values)
