"""The store's own connections to a database of DATABASES, in autocommit mode.

The caller's connection would not do. A lease that is taken in the caller's transaction is not seen
by others until that commits, and is gone if it is rolled back.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from django.db import InterfaceError, OperationalError

from ..._compat import django as compat
from ..._values import clock
from ..._values.processes import OfProcess
from ..._values.tokens import chance
from ...exceptions import InvalidLockConfig

T = TypeVar("T")

# The options by which each kind of database, by Django's ``vendor``, limits how long a call waits,
# in seconds.
LIMITS = {
    "postgresql": ("connect_timeout", "keepalives_idle", "keepalives_interval"),
    "mysql": ("connect_timeout", "read_timeout", "write_timeout"),
    "sqlite": ("timeout",),
}
# PostgreSQL ends a statement after this share of that time. MariaDB and MySQL end its wait for a
# lock a second before the driver gives up. So no write is made that nobody waits for.
SERVER_SHARE = 0.9
# The time at which a statement began, by the clock of the database. In UTC: a time of the
# session's zone would come twice when the clocks are put back.
CLOCKS = {
    "postgresql": "(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000)::bigint",
    "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
}
# A connection that was idle for longer is not used again: a firewall on the way may have dropped it
# without a word.
IDLE_SECONDS = 60.0
# What PostgreSQL and MariaDB say when they have undone a transaction, to end a deadlock or because
# it cannot be put into an order with others.
UNDONE = frozenset({"40P01", "40001", 1213})
# The pause before a call is tried again: between these.
PAUSE_SECONDS = (0.001, 0.05)

# Idle connections of the process that has forked this one. To close them, or to let the garbage
# collector find them, would end the parent's sessions.
_inherited: list[deque[Connection]] = []


class Connection:
    """One connection; whoever has taken it from `DatabaseConnections` has it alone.

    ``answered``: whether a statement had an answer since it was taken.
    """

    def __init__(self, database: str, seconds: float) -> None:
        """Connect.

        Args:
            database: the alias in DATABASES.
            seconds: how long connecting, and a statement, may take.

        Raises `InvalidLockConfig` if no lease can be kept there, and what Django raises.
        """
        self.answered, self.idle_since = False, clock.now()
        self._database = database
        self._settings = compat.settings_of(database)
        self._wrapper = compat.new_wrapper(database)
        self._vendor = self._wrapper.vendor
        options = _options(self._wrapper, seconds)
        self._wrapper.settings_dict.update(
            AUTOCOMMIT=True, CONN_HEALTH_CHECKS=False, OPTIONS=options
        )
        driver = getattr(self._wrapper, "Database", None)
        # A limit of the session would stay behind where PgBouncer gives the session to others. In
        # one text with the statement it needs no round trip of its own.
        limit = f"SET LOCAL statement_timeout = {round(seconds * SERVER_SHARE * 1000)}; "
        self._before = limit if self._vendor == "postgresql" else ""
        self._has_more = bool(self._before) and hasattr(driver, "ClientCursor")
        try:
            with compat.off_the_event_loop():
                if self._has_more:
                    compat.limit_waits(self._wrapper, seconds)
                self._wrapper.ensure_connection()
                self._cursor = self._wrapper.cursor()
            if self._vendor == "mysql":
                most = options["read_timeout"] - 1
                self.run(f"SET lock_wait_timeout = {most}, innodb_lock_wait_timeout = {most}")
        except BaseException:
            self.close()
            raise

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """Run a statement, in a transaction of its own unless one was begun. Returns the cursor."""
        self._cursor.execute(self._before + sql, parameters)
        if self._has_more:  # psycopg 3 begins with the answer to the first one.
            while self._cursor.nextset():
                pass
        self.answered = True
        return self._cursor

    @property
    def now(self) -> str:
        """How a statement says when it began, in microseconds since the epoch."""
        # SQLite has no clock but the host's, and would round it.
        return CLOCKS.get(self._vendor) or str(time.time_ns() // 1000)

    def begin(self) -> None:
        """Begin a transaction. PostgreSQL ends the session of a process that stops in it."""
        self.run(self._before.replace("statement", "idle_in_transaction_session") + "BEGIN")

    def end(self, *, commit: bool) -> None:
        """End the transaction."""
        # After a statement that failed, PostgreSQL takes nothing else.
        self._cursor.execute("COMMIT" if commit else "ROLLBACK")

    @property
    def usable(self) -> bool:
        """Whether it was used not long ago, and is to the database that the settings name now."""
        return (
            clock.now() - self.idle_since < IDLE_SECONDS
            and self._settings == compat.settings_of(self._database)
        )

    def close(self) -> None:
        """Close it."""
        with suppress(Exception), compat.off_the_event_loop():
            self._wrapper.close()


class DatabaseConnections:
    """The connections of one store in this process, for all of its threads: as many as there are
    calls at the same time."""

    def __init__(self, database: str, seconds: float) -> None:
        """``database``, ``seconds``: as for `Connection`."""
        self._database, self._seconds = database, seconds
        self._idle = OfProcess[deque[Connection]](deque, _inherited.append)
        weakref.finalize(self, _close_all, self._idle)

    def run(self, work: Callable[[Connection], T]) -> T:
        """Return what ``work`` returns. It is called again if the database has undone its
        transaction, and once if its connection was cut while it was idle.

        Raises what ``work`` raises, and what `Connection` does.
        """
        deadline = clock.now() + self._seconds
        while True:
            idle = self._idle_one()
            connection, done = idle or Connection(self._database, self._seconds), False
            try:
                answer, done = work(connection), True
                return answer
            except (OperationalError, InterfaceError) as error:
                cut = idle is not None and not idle.answered
                # A driver that has waited for an answer, and given up, has passed the deadline.
                if not (cut or _is_undone(error)) or clock.now() > deadline:
                    raise
                if cut:
                    self.close_idle()  # They are older: the server is likely to have cut them too.
            finally:
                if done:
                    connection.idle_since = clock.now()
                    self._idle.own().append(connection)
                else:  # There may be an answer that nobody has read.
                    connection.close()
            time.sleep(chance.uniform(*PAUSE_SECONDS))

    def close_idle(self) -> None:
        """Close the connections that no call is using."""
        _close_all(self._idle)

    def _idle_one(self) -> Connection | None:
        """The last one that was used, if it is of use."""
        idle = self._idle.own()
        with suppress(IndexError):
            # The longest idle first: of a burst of calls most would be left.
            while not idle[0].usable:
                idle.popleft().close()
            while not (connection := idle.pop()).usable:
                connection.close()
            connection.answered = False
            return connection
        return None


def _close_all(idle: OfProcess[deque[Connection]]) -> None:
    with suppress(IndexError):
        while True:
            idle.own().pop().close()


def _is_undone(error: Exception) -> bool:
    cause: Any = error.__cause__
    code = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return (code or (error.args[0] if error.args else None)) in UNDONE


def _options(wrapper: Any, seconds: float) -> dict[str, Any]:
    """The alias's OPTIONS, with the limits of its driver."""
    if wrapper.vendor not in LIMITS or (wrapper.vendor == "sqlite" and wrapper.is_in_memory_db()):
        raise InvalidLockConfig(
            f"the database {wrapper.alias!r} ({wrapper.display_name}) cannot keep locks: they need "
            "PostgreSQL, MariaDB, MySQL, or SQLite with a file as NAME, and in tests as "
            "TEST['NAME']"
        )
    whole = max(2, math.ceil(seconds))
    options: dict[str, Any] = wrapper.settings_dict["OPTIONS"].copy()
    options |= dict.fromkeys(LIMITS[wrapper.vendor], whole)
    if wrapper.vendor == "postgresql":
        options["tcp_user_timeout"] = whole * 1000
        # A pool is the application's, and two statements in one text have no parameters on the
        # server.
        options.pop("pool", None)
        options.pop("server_side_binding", None)
    return options
