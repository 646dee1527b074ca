"""What Django does not document of its database connections and its admin, and we use.

Guards look at the transaction they are in, and at what a field can hold. `DatabaseStore` needs
connections beside those of Django, which belong to a thread and may be in a transaction. Read in
Django 5.2.19; the other releases that we support have it too.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from inspect import getattr_static
from time import monotonic
from typing import Any

from django.db import OperationalError, connections, transaction
from django.db.backends.base.base import NO_DB_ALIAS, BaseDatabaseWrapper

# What ``lock_view`` notes on a view: the database until whose commit it holds the lock, or False.
# Decorators and ``as_view()`` hand it on.
UNTIL_COMMIT = "_tasklock_until_commit"


def settings_of(database: str) -> tuple[Any, ...]:
    """The settings that say which database an alias is, as they are now.

    ``connections.settings`` is where a test run puts the name of the test database.
    """
    settings = connections.settings[database]
    return tuple(settings[key] for key in ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT"))


def new_wrapper(database: str) -> BaseDatabaseWrapper:
    """A connection that is not connected yet, with settings of its own, for any thread to use.

    Uses ``copy`` and ``inc_thread_sharing`` of Django's wrapper.
    """
    wrapper: BaseDatabaseWrapper = connections[database].copy()
    wrapper.inc_thread_sharing()
    return wrapper


@contextmanager
def off_the_event_loop() -> Iterator[None]:
    """Let Django connect, and close a connection, where an event loop runs: it refuses both there,
    and no statement. Uses what tells Django, and ``asyncio`` itself, that this thread has a loop.
    """
    loop = asyncio._get_running_loop()
    try:
        asyncio._set_running_loop(None)
        yield
    finally:
        asyncio._set_running_loop(loop)


def limit_waits(wrapper: BaseDatabaseWrapper, seconds: float) -> None:
    """Have each wait of psycopg 3 for its server end after so many seconds, as `OperationalError`.

    A server that hangs, or its pooler, keeps no limit, and its host still acknowledges. Replaces
    ``get_new_connection`` of Django's wrapper, and the documented ``wait`` of the connection.
    """
    connect = wrapper.get_new_connection

    def connect_with_limit(parameters: Any) -> Any:
        connection = connect(parameters)
        connection.wait = partial(_wait, connection.pgconn, seconds)
        return connection

    vars(wrapper)["get_new_connection"] = connect_with_limit


def _wait(pgconn: Any, seconds: float, steps: Any, *_: Any, **__: Any) -> Any:
    """Make psycopg's steps: each yields whether the socket has to be readable or writable next, in
    the numbers of ``selectors``, and is sent what it is."""
    until = monotonic() + seconds
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(pgconn.socket, next(steps))
            while ready := selector.select(max(0.0, until - monotonic())):
                selector.modify(pgconn.socket, steps.send(ready[0][1]))
    except StopIteration as end:
        return end.value
    raise OperationalError(f"no answer in {seconds:g} s")


def is_above_databases(connection: BaseDatabaseWrapper) -> bool:
    """Whether Django has made this connection to create or to drop a test database."""
    return bool(connection.alias == NO_DB_ALIAS)


def is_in_atomic(using: str) -> bool:
    """Return whether the caller is inside an ``atomic()`` block on the database ``using``.

    The block that a ``TestCase`` opens around a test does not count, as for Django's own durable
    blocks. Uses ``atomic_blocks`` of the connection, and ``_from_testcase`` of the blocks.
    """
    blocks = transaction.get_connection(using).atomic_blocks
    return bool(blocks) and not blocks[-1]._from_testcase


def is_until_commit(using: str) -> bool:
    """Return whether what the caller does is committed later, at the end of an ``atomic()`` block.

    Also in a ``TestCase``. Raises `TypeError` under ``set_autocommit(False)``, where Django calls
    no hooks after a commit. Uses ``in_atomic_block`` of the connection.
    """
    connection = transaction.get_connection(using)
    if not (connection.in_atomic_block or connection.get_autocommit()):
        raise TypeError(
            "until_commit needs atomic(): after set_autocommit(False) it sees no commit"
        )
    return bool(connection.in_atomic_block)


def is_unlocked_early(view: Any) -> bool:
    """Return whether ``lock_view`` releases a lock of the view, or of a handler of its class, while
    the transaction around the request is still open.

    Uses ``_non_atomic_requests`` of views, where Django's decorator of that name notes databases.
    """
    settings, exempt = connections.settings, getattr(view, "_non_atomic_requests", ())
    around = {name for name in settings if settings[name]["ATOMIC_REQUESTS"] and name not in exempt}
    of = getattr(view, "view_class", getattr(view, "cls", None))
    # Without running what the project has there.
    handlers = [view, *(getattr_static(of, name, None) for name in dir(of))]
    ends = {getattr(each, "__dict__", {}).get(UNTIL_COMMIT, "") for each in handlers}
    return bool(around) and not ends <= {"", *around}


def tables_of(rows: Any) -> int:
    """Return how many tables a queryset joins; those of subqueries do not count. Of more than one
    Django makes no single UPDATE. Uses ``count_active_tables`` of its queries."""
    return int(rows.query.count_active_tables())


def can_hold(number: int, field: Any) -> bool:
    """Return whether ``field`` holds ``number`` on every database.

    For a field of a class that is not Django's the answer is True: only its author knows what it
    holds. Uses ``integer_field_ranges`` of Django's operations on databases.
    """
    if not type(field).__module__.startswith("django."):
        return True
    kind = field.get_internal_type()
    if kind == "DecimalField":
        digits = field.max_digits
        return digits is None or digits - (field.decimal_places or 0) >= len(str(abs(number)))
    # Not at the top: tasks are imported before Django's apps are ready, and that would be a circle.
    from django.db.backends.base.operations import BaseDatabaseOperations

    # The range that every database has: SQLite holds any integer in any column, others do not.
    least, most = BaseDatabaseOperations.integer_field_ranges.get(kind, (0, 0))
    return bool(least <= number <= most)


def close_if_cut(using: str) -> bool:
    """Return whether this thread's connection to the database ``using`` was cut.

    Then it is closed, and the next statement makes a new one. Not inside an ``atomic()`` block,
    which is lost with its connection. Uses ``is_usable`` of Django's wrapper.
    """
    connection = connections[using]
    if connection.in_atomic_block or (connection.connection is not None and connection.is_usable()):
        return False
    connection.close()
    return True


def add_without_transaction(admin: Any, request: Any, *shown: Any) -> Any:
    """As ``ModelAdmin.add_view``, which opens a transaction for a POST."""
    return admin._changeform_view(request, None, *shown)
