"""
System checks of the lock stores.

======================  =======  ====================================================
id                      level    condition
======================  =======  ====================================================
``E001``                error    a setting, an alias or a backend is wrong
``E002``                error    the cache is a DummyCache, which grants every lock
``W001``                warning  the cache is a LocMemCache: one process only
``W002``                warning  the cache is a FileBasedCache: its ``add`` is not atomic
``W007``                warning  the cache is a DatabaseCache: nor is its ``add`` of an expired key
``W008``                warning  two calls of the cache's KEY_FUNCTION for one name differ
``W011``                warning  a view's lock ends before the transaction of its request
``W012``                warning  a setting's name begins as ours do, and nothing reads it
``W003``                warning  ``--deploy``: the store did not answer
the id of the finding   warning  ``--deploy``: what `BaseStore.check` finds on the server,
                        or info  such as ``django_tasklock.eviction``
======================  =======  ====================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.cache import BaseCache, caches
from django.core.cache.backends import db, dummy, filebased, locmem
from django.urls import get_resolver

from ._compat.django import is_unlocked_early
from ._values.words import printable
from .conf import KEYS, SETTING, TASK_URL_SETTING, configured_stores, task_url
from .exceptions import InvalidLockConfig, StoreUnavailable
from .stores import stores

Messages = list[checks.CheckMessage]
# An id, what is wrong, and a hint.
Found = tuple[str, object, str | None]

# By the first letter of an id.
LEVELS = {"E": checks.Error, "W": checks.Warning}
UNTIL = "Write lock_view(..., until_commit=True), or exempt the view by non_atomic_requests."
SETTINGS = f'Write {SETTING} = {{"default": {{...}}}}, with {", ".join(KEYS)}; or '
SETTINGS += f"{TASK_URL_SETTING}. A setting of your own needs another name."
ANOTHER = "Use Redis, Memcached or a DatabaseStore for the locks."
KEYS_OF_TENANTS = (
    "The KEY_FUNCTION must return one key for one name. If it looks for a tenant, the same one "
    "must be current where a task is sent and where it runs; and only on Redis a lease keeps its "
    "key."
)
# What is to be said of caches that do not exclude: the id, and the words behind those that name the
# store.
CACHES: dict[type[BaseCache], tuple[str, str]] = {
    dummy.DummyCache: ("E002", "a DummyCache: it grants every lock to everybody."),
    locmem.LocMemCache: ("W001", "a LocMemCache: its locks exclude within one process only."),
    filebased.FileBasedCache: (
        "W002", "a FileBasedCache: its add() is not atomic, so two may get one lock."
    ),
    # It reads the row, and updates it if that has expired, without a condition on what it read.
    db.DatabaseCache: (
        "W007", "a DatabaseCache: after a lease has expired, several may get the lock."
    ),
}  # fmt: skip


def message(id: str, text: object, hint: str | None = None) -> checks.CheckMessage:
    """Return the message with an id such as "E001"."""
    return LEVELS[id[0]](str(text), hint=hint, id=f"django_tasklock.{id}")


def check_stores(**_: Any) -> Messages:
    """Return what is wrong with the settings. Asks no server."""
    names = {each for each in dir(settings) if each.startswith(SETTING)}
    unknown = sorted(names - {SETTING, TASK_URL_SETTING})
    found = [message("W012", f"nothing reads the setting {each}.", SETTINGS) for each in unknown]
    found += _errors(lambda: task_url("id"))
    if wrong := _errors(configured_stores):
        return found + wrong
    return found + [message for alias in configured_stores() for message in _check_store(alias)]


def check_servers(**_: Any) -> Messages:
    """Return what the stores find on their servers, for ``check --deploy``."""
    if _errors(configured_stores):
        return []  # `check_stores` reports it.
    return [message for alias in configured_stores() for message in _check_server(alias)]


def check_views() -> Messages:
    """Return a warning for each view whose lock ends before the transaction that ATOMIC_REQUESTS
    opens around all decorators. A lock below ``api_view`` of DRF is not seen."""
    found = set[str]()
    with suppress(Exception):  # Django's own check reports a URLconf that cannot be imported.
        patterns: list[Any] = list(get_resolver().url_patterns)
        for each in patterns:
            patterns += getattr(each, "url_patterns", ())
            if is_unlocked_early(getattr(each, "callback", None)):
                found.add(f"the view {each.lookup_str} releases its lock before its commit.")
    return [message("W011", text, UNTIL) for text in sorted(found)]


def check_lock(guard: Any, how: Any, option: str) -> Iterator[Found]:
    """Yield what is wrong with a task's guard, and with how it takes its lock. ``option``: what it
    calls its store."""
    if guard is not None:
        try:
            if problem := guard.field_trouble():
                yield "E005", problem, None
        except InvalidLockConfig as wrong:  # Of its model or its fields.
            yield "E003", wrong, "Correct the guard; or add the field to the model, and migrate."
    if how.store not in stores.settings:
        known = ", ".join(map(repr, stores.settings)) or "no alias"
        hint = f"Correct {option}, or add the store to TASKLOCK, which has {known}."
        yield "E004", f"there is no lock store {how.store!r}", hint
        return
    with suppress(InvalidLockConfig, StoreUnavailable):  # The checks of the stores report it.
        store = stores[how.store]
        try:
            if how.cooling is not None:
                how.cooling.check(store)
            # The store's own was checked with its settings.
            ttl = 0.0 if how.ttl is None else min(how.ttl, how.max_hold or how.ttl)
            store.check_lasts("ttl", ttl, InvalidLockConfig)
        except InvalidLockConfig as wrong:
            yield "E006", str(wrong), None


def _errors(read: Callable[[], object]) -> Messages:
    """What is wrong with the settings that ``read`` reads."""
    try:
        read()
    except InvalidLockConfig as error:
        return [message("E001", error)]
    return []


def _check_store(alias: str) -> Iterator[checks.CheckMessage]:
    try:
        wrong = _errors(lambda: stores[alias])
    except StoreUnavailable:
        return  # A store that connects when it is made: `check_servers` says so.
    if wrong or not stores[alias].uses_cache:
        yield from wrong
        return
    store = stores[alias]
    cache = caches[store.settings.cache]
    where = f"the lock store {alias!r} uses the cache {store.settings.cache!r}"
    for kind, (identity, what) in CACHES.items():
        if isinstance(cache, kind):
            yield message(identity, f"{where}, {what}", ANOTHER)
    with ThreadPoolExecutor(1) as thread:
        there = thread.submit(Context().run, _key_of, cache).result()
    here, again = _key_of(cache), _key_of(cache)
    if not here == again == there:
        said = f"another key for one name: {here}, then {again}, and {there} in another thread."
        yield message("W008", f"{where}, whose KEY_FUNCTION makes {said}", KEYS_OF_TENANTS)


def _key_of(cache: BaseCache) -> str:
    try:
        return str(cache.make_key("name"))
    except Exception as error:  # A KEY_FUNCTION may do so where no tenant is current.
        return f"{type(error).__name__}: {error}"


def _check_server(alias: str) -> Iterator[checks.CheckMessage]:
    try:
        if _errors(lambda: stores[alias]):
            return  # `check_stores` reports it.
        for finding in list(stores[alias].check()):
            kind = checks.Warning if finding.serious else checks.Info
            text = f"The lock store {alias!r}: {finding.message}."
            yield kind(text, hint=finding.hint or None, id=f"django_tasklock.{finding.id}")
    except InvalidLockConfig as error:
        # Of some settings the server shows that they are wrong: a database that is MySQL.
        yield message("E001", error)
    except StoreUnavailable as error:
        reason = printable(error.reason)
        text = f"The lock store {alias!r} could not be asked about its server: {reason}"
        hint = "Look at the server, and at its address in the settings."
        yield message("W003", text, hint)
