"""The stores by alias. No store's module is imported before its alias is used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from threading import RLock
from typing import Any

from django.core.cache import caches
from django.core.cache.backends.base import InvalidCacheBackendError
from django.core.signals import setting_changed
from django.utils.connection import BaseConnectionHandler
from django.utils.module_loading import import_string

from ..conf import SETTING, StoreSettings, configured_stores
from ..exceptions import InvalidLockConfig, TaskLockError
from .base import BaseStore, interrupts

__all__ = ["StoreHandler", "stores"]

REDIS_STORE = "django_tasklock.stores.redis.RedisStore"
CACHE_STORE = "django_tasklock.stores.cache.CacheStore"
REDIS_CACHES = frozenset(
    {
        "django_redis.cache.RedisCache",
        "django_valkey.cache.ValkeyCache",
        "django.core.cache.backends.redis.RedisCache",
    }
)


class StoreHandler(BaseConnectionHandler):  # type: ignore[type-arg]
    """``stores[alias]``: the store of an alias in the settings, made on first use.

    Unlike Django's cache and database connections, a store is shared by all threads: its
    connections, scripts and subscriber are made once in each process. Raises `InvalidLockConfig`
    for an alias that is not configured, and for a store whose settings are wrong.
    """

    settings_name = SETTING
    exception_class = InvalidLockConfig

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[str, BaseStore] = {}
        self._making = RLock()

    def configure_settings(self, settings: Any) -> Any:
        return configured_stores()

    def __getitem__(self, alias: str) -> BaseStore:
        store = self._made.get(alias)
        if store is not None:
            return store
        with self._making:
            if alias not in self._made:
                self._made[alias] = self.create_connection(alias)
            return self._made[alias]

    def __setitem__(self, alias: str, store: BaseStore) -> None:
        self._made[alias] = store

    def __delitem__(self, alias: str) -> None:
        del self._made[alias]

    def __iter__(self) -> Iterator[str]:
        return iter(self.settings)

    def all(self, initialized_only: bool = False) -> list[BaseStore]:
        """All stores; with ``initialized_only`` only those that were made already."""
        return [self[alias] for alias in self if not initialized_only or alias in self._made]

    def made(self, alias: str) -> BaseStore | None:
        """The store of an alias, if it was made already. Reads no settings, and raises nothing."""
        return self._made.get(alias)

    def create_connection(self, alias: str) -> BaseStore:
        if alias not in self.settings:
            raise InvalidLockConfig(
                f"there is no lock store {alias!r}; {SETTING} has "
                f"{', '.join(map(repr, self.settings)) or 'no alias'}"
            )
        settings: StoreSettings = self.settings[alias]
        path = settings.backend or _backend_for(settings)
        try:
            backend = import_string(path)
        except (ImportError, ValueError) as error:  # A ValueError: the path begins with a dot.
            raise InvalidLockConfig(
                f"the BACKEND {path!r} of the lock store {alias!r} cannot be imported: {error}"
            ) from error
        if not (isinstance(backend, type) and issubclass(backend, BaseStore)):
            raise InvalidLockConfig(
                f"the BACKEND {path!r} of the lock store {alias!r} is not a BaseStore"
            )
        missing = [
            name for name in ("put", "get") if vars(BaseStore)[name] is getattr(backend, name)
        ]
        if missing:
            raise InvalidLockConfig(
                f"the BACKEND {path!r} of the lock store {alias!r} does not implement "
                f"{', '.join(missing)}"
            )
        try:
            return backend(settings)
        except InvalidCacheBackendError as error:
            raise _no_cache(settings, str(error)) from error
        except (InvalidLockConfig, TaskLockError):
            raise
        except Exception as error:
            if interrupts(error):
                raise
            raise InvalidLockConfig(
                f"the lock store {alias!r} cannot be made: {type(error).__name__}: {error}"
            ) from error

    def forget(self) -> None:
        """Drop all stores, and the settings that they were made from.

        Their idle connections are closed: left to the garbage collector, sockets may be found open,
        and warnings be errors.
        """
        with self._making:
            dropped = list(self._made.values())
            self._made.clear()
            self.__dict__.pop("settings", None)
        for store in dropped:
            store.close_idle()


def _backend_for(settings: StoreSettings) -> str:
    try:
        cache = caches[settings.cache]
    except InvalidCacheBackendError as error:
        raise _no_cache(settings, str(error)) from error
    except Exception as error:  # Whatever its class makes of its settings.
        if interrupts(error):
            raise
        raise _no_cache(settings, f"it cannot be made: {type(error).__name__}: {error}") from error
    # Compared by name: a site without Redis does not need a Redis client.
    names = {f"{base.__module__}.{base.__qualname__}" for base in type(cache).__mro__}
    return REDIS_STORE if names & REDIS_CACHES else CACHE_STORE


def _no_cache(settings: StoreSettings, reason: str) -> InvalidLockConfig:
    return InvalidLockConfig(
        f"the CACHE {settings.cache!r} of the lock store {settings.alias!r}: {reason}"
    )


stores = StoreHandler()


def _settings_changed(*, setting: str, **_kwargs: Any) -> None:
    if setting in (SETTING, "CACHES"):
        stores.forget()


def _new_process() -> None:
    # A thread that the child does not have may have held the lock.
    stores._making = RLock()


setting_changed.connect(_settings_changed, dispatch_uid="django_tasklock.stores")
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_process)
