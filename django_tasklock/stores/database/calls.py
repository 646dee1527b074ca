"""How the store calls its database, and what it makes of errors."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.signals import connection_created
from django.utils.connection import ConnectionDoesNotExist

from ..._compat.django_database import is_above_databases
from ..._values.arguments import LONGEST_NAME_CHARACTERS, LONGEST_TTL_SECONDS
from ...conf import SETTING, StoreSettings
from ...exceptions import InvalidLockConfig, StoreUnavailable
from ..base import BaseStore
from ..record import interrupts
from .connections import Answer, Connections
from .dialects import DIALECTS
from .notifications import Notifications
from .own_connection import caller_may_hold_sqlite, cannot_serve, new_connection
from .rows import Row
from .statements import TABLE, Parameters, Statements

__all__ = ["DatabaseCalls"]

LONGEST_KEY_CHARACTERS = 255
DEFAULT_SECONDS = 5.0
DEFAULT_CONNECTIONS = 10


class DatabaseCalls(BaseStore):
    """The part of `DatabaseStore` that is not about leases: options, keys, statements, errors."""

    known_options: ClassVar[frozenset[str]] = BaseStore.known_options | {
        "DATABASE",
        "MAX_CONNECTIONS",
        "TIMEOUT",
    }

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self.database = self._option("DATABASE", DEFAULT_DB_ALIAS, str)
        """the alias in DATABASES"""
        seconds = self._option("TIMEOUT", DEFAULT_SECONDS, (int, float))
        most = self._option("MAX_CONNECTIONS", DEFAULT_CONNECTIONS, int)
        if not 0 < seconds <= LONGEST_TTL_SECONDS or most < 1:
            raise InvalidLockConfig(
                f"the options TIMEOUT and MAX_CONNECTIONS of the lock store {self.alias!r} are "
                "more than 0, and TIMEOUT is ten years at most"
            )
        self._prefix = f"{settings.key_prefix}:" if settings.key_prefix else ""
        if len(self._prefix) + LONGEST_NAME_CHARACTERS > LONGEST_KEY_CHARACTERS:
            raise InvalidLockConfig(
                f"the KEY_PREFIX of the lock store {self.alias!r} has at most "
                f"{LONGEST_KEY_CHARACTERS - LONGEST_NAME_CHARACTERS - 1} characters: "
                f"{settings.key_prefix!r} is too long"
            )
        self._assert_served()
        self._connections = Connections(self.alias, self.database, seconds, most)
        self.notifications: Notifications | None = None
        """the notifications that wake waiters, where the database has them"""
        if connections[self.database].vendor == "postgresql":
            self.notifications = Notifications(
                partial(new_connection, self.database, seconds), self._notify
            )
        connection_created.connect(self._connected)
        setting_changed.connect(self._changed)

    def key(self, name: str) -> str:
        """The primary key of a lock's row."""
        return self._prefix + name

    def name(self, key: str) -> str:
        """The name of the lock whose row has this key."""
        return key[len(self._prefix) :]

    @cached_property
    def statements(self) -> Statements:
        """Those for the kind of database that DATABASES names."""
        return DIALECTS[connections[self.database].vendor]

    def run(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Answer:
        """Run a statement. Raises `StoreUnavailable`, and `InvalidLockConfig` for a database in
        which no lease can be kept."""
        given: Parameters = {**(parameters or {}), "now": time.time_ns() // 1000}
        try:
            return self._connections.run(sql, given)
        except (InvalidLockConfig, StoreUnavailable):
            raise
        except Exception as error:
            if interrupts(error):
                raise
            raise StoreUnavailable(self.alias, self._reason(error)) from error

    def row(self, sql: str, parameters: Mapping[str, Any]) -> Row | None:
        """The first row that a statement returns."""
        rows = self.run(sql, parameters).rows
        return Row(*rows[0]) if rows else None

    def _reason(self, error: Exception) -> str:
        text = str(error) or type(error).__name__
        if TABLE in text and ("no such table" in text or "exist" in text):
            return (
                f"the database {self.database!r} has no table {TABLE}: run "
                f"manage.py migrate --database={self.database}, with django_tasklock in "
                f"INSTALLED_APPS and no router against it ({text})"
            )
        if "locked" in text and connections[self.database].vendor == "sqlite":
            if caller_may_hold_sqlite():
                text = f"{text}, it seems by the caller's own transaction"
            return (
                f"{text}; give the locks a database file of their own, by another alias in "
                'DATABASES and OPTIONS["DATABASE"]'
            )
        return text

    def _option(self, name: str, default: Any, kind: Any) -> Any:
        value = self.settings.options.get(name, default)
        if isinstance(value, bool) or not isinstance(value, kind):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            raise InvalidLockConfig(
                f"the option {name} of the lock store {self.alias!r} is of type "
                f"{' or '.join(each.__name__ for each in kinds)}, not {value!r}"
            )
        return value

    def _assert_served(self) -> None:
        try:
            wrapper = connections[self.database]
        except (ConnectionDoesNotExist, ImproperlyConfigured) as error:
            raise InvalidLockConfig(
                f"the DATABASE {self.database!r} of the lock store {self.alias!r}: {error}"
            ) from error
        if wrapper.vendor not in DIALECTS:
            raise InvalidLockConfig(
                f"the lock store {self.alias!r}: the database {self.database!r} "
                f"{cannot_serve(wrapper)}"
            )

    def _changed(self, *, setting: str, **_: Any) -> None:
        # Also where the store is not one of `stores`, which closes those that it drops.
        if setting == SETTING:
            self.close_idle()

    def _connected(self, *, connection: Any, **_: Any) -> None:
        # Django makes or drops a test database, and PostgreSQL drops none that is in use.
        if is_above_databases(connection):
            self.close_idle()

    def close_idle(self) -> None:
        self._connections.close_idle()
        if self.notifications is not None:
            self.notifications.close()

    def _notify(self, channel: str) -> None:
        self.run("SELECT pg_notify(%(channel)s, '')", {"channel": channel})
