"""The settings, read live: ``TASKLOCK``, one dict of aliases in the style of ``CACHES``."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from django.apps import apps
from django.conf import settings

from ._values.arguments import checked_ttl
from .exceptions import InvalidLockConfig

SETTING = "TASKLOCK"
DEFAULT_ALIAS = "default"
TASK_URL_SETTING = "TASKLOCK_TASK_URL"
TASK_ID_FIELD = "{task_id}"
# A host, which may be an IPv6 address in brackets, and the task's id behind it.
_TASK_URL = r"https?://(?:[\w.:@%~-]|\[[\w:.]+\])+[/?#].*\{task_id\}.*"


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class StoreSettings:
    """The settings of one store, after they were checked.

    ``alias``: of the store, a key of ``TASKLOCK``. ``backend``: the dotted path of the store's
    class; None: the class of the cache decides.
    ``cache``: an alias of ``CACHES``. ``key_prefix``: the beginning of the locks' keys. ``ttl``:
    how many seconds a lease lasts where the caller does not say. ``options``: the store's own.
    """

    alias: str
    backend: str | None = None
    cache: str = "default"
    key_prefix: str = "lock"
    ttl: float = 60.0
    options: Mapping[str, Any] = field(default_factory=dict)

    def option(self, option: str, default: Any, fits: Callable[[Any], bool], what: str) -> Any:
        """Return an option of the store, for which ``fits`` returns True.

        Raises `InvalidLockConfig` for anything else. The error says ``what`` the option must be.
        """
        given = self.options.get(option, default)
        if not fits(given):
            raise self.wrong(f"the option {option} must be {what}, not {given!r}")
        return given

    def seconds(self, option: str, default: float) -> float:
        """Return an option of the store, which is a number of seconds.

        Raises `InvalidLockConfig` for anything else.
        """
        try:
            return checked_ttl(self.options.get(option, default), f"the option {option}")
        except (TypeError, ValueError) as error:
            raise self.wrong(str(error)) from error

    def wrong(self, what: str) -> InvalidLockConfig:
        """Return the error to raise for settings that the store cannot have."""
        return InvalidLockConfig(f"the lock store {self.alias!r}: {what}")


KEYS = ("BACKEND", "CACHE", "KEY_PREFIX", "TTL", "OPTIONS")


def configured_stores() -> dict[str, StoreSettings]:
    """Return the settings of every store, by alias.

    Without ``TASKLOCK`` there is one store, "default", on the default cache. Raises
    `InvalidLockConfig` for an unknown key and for a wrong value.
    """
    given = getattr(settings, SETTING, None)
    configured = {DEFAULT_ALIAS: {}} if given is None else given
    if not isinstance(configured, Mapping):
        what = f"{SETTING} must be a dict of store aliases, not {configured!r}"
        raise InvalidLockConfig(f'{what}. Write {SETTING} = {{"default": {{...}}}}')
    return {alias: _checked(alias, given) for alias, given in configured.items()}


def _checked(alias: Any, given: Any) -> StoreSettings:
    where = f"{SETTING}[{alias!r}]"
    if not isinstance(alias, str):
        raise InvalidLockConfig(f"{where}: an alias must be a str, not {alias!r}")
    if not isinstance(given, Mapping):
        what = f"{where} must be a dict, the settings of one store, not {given!r}"
        if alias in KEYS:  # The alias was forgotten.
            what += f'. Write {SETTING} = {{"{DEFAULT_ALIAS}": {{{alias!r}: {given!r}}}}}'
        raise InvalidLockConfig(what)
    if unknown := sorted(set(map(str, given)) - set(KEYS)):
        raise InvalidLockConfig(
            f"{where} has no setting {', '.join(unknown)}; there are {', '.join(KEYS)}"
        )
    for key, kinds, what in (
        ("BACKEND", str | None, "the dotted path of a class"),
        ("CACHE", str, "an alias of CACHES"),
        ("KEY_PREFIX", str, "a str"),
        ("OPTIONS", Mapping, "a dict"),
    ):
        if key in given and not isinstance(given[key], kinds):
            raise InvalidLockConfig(f"{where}[{key!r}] must be {what}, not {given[key]!r}")
    store = StoreSettings(alias, **{key.lower(): value for key, value in given.items()})
    try:
        return replace(store, ttl=checked_ttl(store.ttl))
    except (TypeError, ValueError) as error:
        raise InvalidLockConfig(f"{where}['TTL']: {error}") from error


def warn_unless_installed() -> None:
    """Warn if the project's ``INSTALLED_APPS`` lacks this app. Python prints a warning once."""
    if apps.apps_ready and not apps.is_installed("django_tasklock"):
        text = (
            "django_tasklock is not in INSTALLED_APPS: its system checks, log lines, command and "
            'admin page are missing. Add "django_tasklock" to INSTALLED_APPS.'
        )
        warnings.warn(text, RuntimeWarning, stacklevel=1)


def task_url(task_id: str) -> str | None:
    """Return the address of the page about a task, such as Flower's; None without the setting.

    Raises `InvalidLockConfig` unless ``TASKLOCK_TASK_URL`` is None, or the address of a web page
    with ``{task_id}`` behind the host.
    """
    template = getattr(settings, TASK_URL_SETTING, None)
    if template is None:
        return None
    if not (isinstance(template, str) and re.fullmatch(_TASK_URL, template)):
        raise InvalidLockConfig(
            f"{TASK_URL_SETTING} must be an address such as 'https://flower.example.com/task/"
            f"{TASK_ID_FIELD}', with http or https, not {template!r}"
        )
    # Not str.format: an address may have other braces. Task ids are anybody's text.
    return str(template).replace(TASK_ID_FIELD, quote(task_id, safe="", errors="replace"))
