"""The table of jobs in another database than the default one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, models
from django.test.utils import override_settings

from tests.app.models import Job
from tests.conftest import ProxyTo, database_alias
from tests.proxied_databases import proxy_before
from tests.proxy import CutProxy


@contextmanager
def jobs_on(alias: str, *, by: str | None = None) -> Iterator[None]:
    """Make the table in the database ``alias``, and send the jobs there; or to ``by``, another
    alias of the same database."""
    with connections[alias].schema_editor() as editor:
        editor.create_model(Job)
    try:
        with override_settings(DATABASE_ROUTERS=[_Router(by or alias)]):
            yield
    finally:
        with connections[alias].schema_editor() as editor:
            editor.delete_model(Job)


@contextmanager
def jobs_through_proxy(alias: str, proxy_to: ProxyTo) -> Iterator[CutProxy]:
    """The same, behind the proxy that it yields: by the alias "cut"."""
    proxy = proxy_before(alias, proxy_to)
    behind = dict(connections.settings[alias]) | {"HOST": "127.0.0.1", "PORT": proxy.port}
    if behind["ENGINE"] == "tests.postgresql" and not behind["USER"]:
        behind["USER"] = "postgres"
    with database_alias("cut", behind), jobs_on(alias, by="cut"):
        yield proxy


class _Router:
    def __init__(self, alias: str) -> None:
        self._alias = alias

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str | None:
        return self._alias if model is Job else None

    db_for_write = db_for_read
