"""The stores by alias. No store's module is imported before its alias is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.cache import caches
from django.core.signals import setting_changed
from django.utils.functional import cached_property
from django.utils.module_loading import import_string

from .._values.interruptions import interrupts
from ..conf import SETTING, StoreSettings, configured_stores, warn_unless_installed
from ..exceptions import InvalidLockConfig, TaskLockError
from .base import BaseStore

__all__ = ["StoreHandler", "stores"]

# Our stores, by the names of their classes.
OURS = {
    path.rpartition(".")[2]: f"{__name__}.{path}"
    for path in (
        "cache.CacheStore", "cluster.RedisClusterStore", "database.DatabaseStore",
        "memory.MemoryStore", "quorum.QuorumStore", "redis.RedisStore", "zookeeper.ZooKeeperStore",
    )
}  # fmt: skip
REDIS_CACHES = {
    "django_redis.cache.RedisCache",
    "django_valkey.cache.ValkeyCache",
    "django.core.cache.backends.redis.RedisCache",
}


class StoreHandler:
    """``stores[alias]``: the store of an alias in the settings, made on first use.

    Unlike Django's cache and database connections, which its handlers keep for each thread, a store
    is shared by all threads: its connections, scripts and subscriber are made once in each process.
    Raises `InvalidLockConfig` for an alias that is not configured, and for a store whose settings
    are wrong.
    """

    def __init__(self) -> None:
        self._made: dict[str, BaseStore] = {}

    @cached_property
    def settings(self) -> dict[str, StoreSettings]:
        """The settings of all aliases."""
        return configured_stores()

    def __iter__(self) -> Iterator[str]:
        return iter(self.settings)

    def __getitem__(self, alias: str) -> BaseStore:
        # Looked up once: `forget` replaces it, and what is made of older settings stays in it. Of
        # threads that make a store at the same time, all get that of the first.
        made = self._made
        if alias not in made:
            made.setdefault(alias, self._make(alias))
        return made[alias]

    def _make(self, alias: str) -> BaseStore:
        if alias not in self.settings:
            raise InvalidLockConfig(
                f"there is no lock store {alias!r}; {SETTING} has "
                f"{', '.join(map(repr, self.settings)) or 'no alias'}. Correct the alias, or add it"
            )
        warn_unless_installed()
        settings = self.settings[alias]
        path = settings.backend
        try:
            path = path or _backend_for(settings)
            backend = import_string(path)
            if not (isinstance(backend, type) and issubclass(backend, BaseStore)):
                raise settings.wrong(
                    f"the BACKEND {path!r} must be a store's class. Leave BACKEND out: the class "
                    "of the cache decides"
                )
            return backend(settings)
        except Exception as error:  # Whatever a class makes of its settings.
            if isinstance(error, InvalidLockConfig | TaskLockError) or interrupts(error):
                raise
            raise settings.wrong(
                f"with the BACKEND {settings.backend!r} and the CACHE {settings.cache!r} it cannot "
                f"be made: {type(error).__name__}: {error}{_meant(path, settings.cache)}"
            ) from error

    def forget(self) -> None:
        """Drop all stores, and the settings that they were made from.

        Their idle connections are closed: left to the garbage collector, sockets may be found open,
        and warnings be errors.
        """
        vars(self).pop("settings", None)
        dropped, self._made = self._made, {}
        for store in dropped.values():
            store.close_idle()


def _meant(path: str | None, cache: str) -> str:
    """What to write for a wrong alias of a cache, and for a store of ours in another module; "" for
    anything else."""
    if cache not in caches.settings:
        return f". CACHES has {', '.join(map(repr, caches.settings))}"
    right = OURS.get(str(path).rpartition(".")[2], path)
    return f". Did you mean {right}?" if right != path else ""


def _backend_for(settings: StoreSettings) -> str:
    # Compared by name: a site without Redis does not need a Redis client.
    classes = type(caches[settings.cache]).__mro__
    names = {f"{base.__module__}.{base.__qualname__}" for base in classes}
    return OURS["RedisStore" if names & REDIS_CACHES else "CacheStore"]


stores = StoreHandler()


def _settings_changed(*, setting: str, **_kwargs: Any) -> None:
    if setting in (SETTING, "CACHES"):
        stores.forget()


setting_changed.connect(_settings_changed, dispatch_uid="django_tasklock.stores")
