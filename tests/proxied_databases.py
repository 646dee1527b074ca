"""`DatabaseStore` by way of a proxy before its server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

from django_tasklock.stores import stores
from django_tasklock.stores.database import DatabaseStore
from tests.conftest import ProxyTo, UseCaches, database_alias
from tests.proxy import CutProxy
from tests.store_cases import database_store

__all__ = ["proxy_before", "through_proxy"]


def proxy_before(alias: str, proxy_to: ProxyTo) -> CutProxy:
    """A proxy before the server of a database."""
    return proxy_to(int(connections.settings[alias]["PORT"] or 5432))


@contextmanager
def through_proxy(
    alias: str, proxy: CutProxy, use_caches: UseCaches, **options: Any
) -> Iterator[DatabaseStore]:
    """The store "default", in the database ``alias``, which it reaches through the proxy."""
    there: Any = dict(connections.settings[alias]) | {"HOST": "127.0.0.1", "PORT": proxy.port}
    with database_alias("proxied", there):
        use_caches({}, {"default": database_store("proxied", **options)})
        store = stores["default"]
        assert isinstance(store, DatabaseStore)
        yield store
        stores.forget()
