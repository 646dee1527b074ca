"""The store's connections: made when they are needed, used again, and never more than a few."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any

from django.db import InterfaceError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from ..._compat.django_database import settings_of
from ..._values import clock
from ..._values.tokens import chance
from ...exceptions import StoreUnavailable
from .overdue import Overdue
from .own_connection import new_connection, wait_for_file
from .statements import Parameters

__all__ = ["Answer", "Connections"]

IDLE_SECONDS = 60.0
"""a connection that was idle for longer is not used again: a firewall on the way may have dropped
it without a word"""
UNDONE = {"40P01", "40001", 1213}
"""what PostgreSQL and MariaDB say when they have undone a statement, to end a deadlock or because
it cannot be put into an order with others"""
PAUSE_SECONDS = (0.001, 0.05)
"""the pause before such a statement is sent again: it grows from the first number to the second,
with jitter"""


@dataclass(slots=True)
class Answer:
    """What came of a statement."""

    rows: list[tuple[Any, ...]]
    count: int
    """rows that it changed, or found"""
    repeated: bool = False
    """whether it was sent before, on a connection that was cut: the database may have done it"""


@dataclass(eq=False)
class _Slot:
    """A connection, or the right to make one."""

    wrapper: BaseDatabaseWrapper | None = None
    cursor: Any = None
    """the connection's one cursor: to make one anew takes longer than all that is done here"""
    made: float = 0.0
    used: float = 0.0
    """on `clock.now`"""
    longest: float = inf
    """for so many seconds after it was made it is used"""
    settings: tuple[Any, ...] = ()


class Connections:
    """The connections of one store in this process, for all of its threads.

    Args:
        store: the store's alias, for errors.
        database: the alias in DATABASES.
        seconds: how long a call waits at most: for a connection, for connecting, for a statement.
        most: how many connections there are at most.
    """

    def __init__(self, store: str, database: str, seconds: float, most: int) -> None:
        self._store, self._database = store, database
        self._seconds, self._most = seconds, most
        self._begin()

    def _begin(self) -> None:
        self._idle: deque[_Slot] = deque()
        # Weak, so that the slot of a call that an exception has ended does not count for ever.
        self._slots: weakref.WeakSet[_Slot] = weakref.WeakSet()
        # Not a threading.Condition, which an exception from a signal handler may leave locked.
        self._counting = threading.Lock()
        self._waiting: deque[Any] = deque()
        """of each caller that waits for a connection, a lock that is released to wake it"""
        self._overdue = Overdue(self._seconds)
        weakref.finalize(self, _close_all, self._idle, os.getpid())
        self._pid = os.getpid()

    def run(self, sql: str, parameters: Parameters) -> Answer:
        """Run one statement, in a transaction of its own.

        On a connection that was used before it is sent again, once, if the connection proves to be
        cut. Where the database undoes it for the sake of others, it is sent again for as long as a
        call may last: where SERIALIZABLE is the default, that happens a few times in a row.

        Raises what Django raises, `InvalidLockConfig` and `StoreUnavailable`.
        """
        repeated, deadline, pause = False, clock.now() + self._seconds, PAUSE_SECONDS[0]
        while True:
            slot, asked = self._take(), clock.now()
            used, done = slot.wrapper is not None, False
            try:
                answer = self._run_on(self._connected(slot), slot.cursor, sql, parameters)
                answer.repeated, done = repeated, True
                return answer
            except (OperationalError, InterfaceError) as error:
                undone = _is_undone(error)
                if undone:
                    if clock.now() + pause > deadline:
                        raise
                elif used and not repeated and self._may_be_cut(slot, clock.now() - asked):
                    repeated = True
                    self.close_idle()  # They are older: the server is likely to have cut them too.
                else:
                    raise
            finally:
                # After any exception there may be an answer that nobody has read.
                self._give_back(slot, usable=done)
            if undone:
                time.sleep(pause * chance.uniform(0.5, 1.0))
                pause = min(PAUSE_SECONDS[1], pause * 2)

    def close_idle(self) -> None:
        """Close the connections that no call is using."""
        _close_all(self._idle, self._pid)

    def _run_on(self, wrapper: Any, cursor: Any, sql: str, parameters: Parameters) -> Answer:
        watched = wrapper.connection if wrapper.vendor == "postgresql" else None
        if wrapper.vendor == "sqlite":
            wait_for_file(wrapper, self._seconds)
        if watched is not None:
            self._overdue.begin(watched)
        try:
            cursor.execute(sql, parameters)
            return Answer(list(cursor.fetchall()) if _returns_rows(sql) else [], cursor.rowcount)
        except (OperationalError, InterfaceError) as error:
            if watched is not None and self._overdue.end(watched):
                raise StoreUnavailable(
                    self._store, f"the database did not answer within {self._seconds:g} s"
                ) from error
            raise
        finally:
            if watched is not None:
                self._overdue.end(watched)

    def _may_be_cut(self, slot: _Slot, seconds: float) -> bool:
        """Whether a call that failed after so many seconds may have found a connection that was cut
        before: a driver that gives up waiting for an answer takes longer."""
        assert slot.wrapper is not None
        return slot.wrapper.vendor != "sqlite" and seconds < self._seconds / 2

    def _take(self) -> _Slot:
        """The last connection that was used, or a slot for a new one."""
        if self._pid != os.getpid():
            # The parent's. To close them, or to lose sight of them, would end its sessions.
            _inherited.append(self._idle)
            self._begin()
        slot = self._idle_one()
        if slot is not None:
            return slot
        deadline, wakeup = clock.now() + self._seconds, threading.Lock()
        try:
            while True:
                wakeup.acquire(False)
                self._waiting.append(wakeup)
                if (slot := self._idle_one()) is not None:
                    return slot
                with self._counting:
                    if len(self._slots) < self._most:
                        slot = _Slot()
                        self._slots.add(slot)
                        return slot
                if not wakeup.acquire(timeout=max(0.0, deadline - clock.now())):
                    raise StoreUnavailable(
                        self._store,
                        f"all of its {self._most} connections are in use (MAX_CONNECTIONS)",
                    )
        finally:
            try:
                self._waiting.remove(wakeup)
            except ValueError:
                self._wake_one()  # Somebody has woken this one, which may not need it.

    def _wake_one(self) -> None:
        with suppress(IndexError, RuntimeError):
            self._waiting.popleft().release()

    def _idle_one(self) -> _Slot | None:
        """The last connection that was used, if it is of use."""
        while True:
            try:
                slot, fresh = self._idle.pop(), False
            except IndexError:
                return None
            try:
                fresh = self._is_fresh(slot)
            finally:
                if not fresh:
                    self._drop(slot)
            if fresh:
                return slot

    def _connected(self, slot: _Slot) -> BaseDatabaseWrapper:
        if slot.wrapper is None:
            slot.settings = settings_of(self._database)
            slot.wrapper = new_connection(self._database, self._seconds)
            slot.cursor = slot.wrapper.cursor()
            slot.longest = slot.wrapper.settings_dict["CONN_MAX_AGE"] or inf
            slot.made = clock.now()
        return slot.wrapper

    def _give_back(self, slot: _Slot, *, usable: bool) -> None:
        slot.used = clock.now()
        if usable:
            self._idle.append(slot)
            if len(self._idle) > 1:
                self._drop_oldest()
        else:
            self._drop(slot)
        # Who waits counts itself before it looks, so it has seen the connection, or is seen here.
        if self._waiting:
            self._wake_one()

    def _drop_oldest(self) -> None:
        """Close the connection that has been idle for longest, if that was too long."""
        with suppress(IndexError, ValueError):  # Another thread uses it by now.
            oldest = self._idle[0]
            if not self._is_fresh(oldest):
                self._idle.remove(oldest)
                self._drop(oldest)

    def _is_fresh(self, slot: _Slot) -> bool:
        now = clock.now()
        return (
            now - slot.used < IDLE_SECONDS
            and now - slot.made < slot.longest
            and slot.settings == settings_of(self._database)
        )

    def _drop(self, slot: _Slot) -> None:
        self._slots.discard(slot)
        _close(slot)


_inherited: list[deque[_Slot]] = []


def _close_all(idle: deque[_Slot], pid: int) -> None:
    while os.getpid() == pid:
        try:
            slot = idle.pop()
        except IndexError:
            return
        _close(slot)


def _close(slot: _Slot) -> None:
    if slot.wrapper is not None:
        with suppress(Exception):
            slot.wrapper.close()


def _returns_rows(sql: str) -> bool:
    # What a cursor says of it, psycopg's describes with an object for each column.
    return sql.startswith(("SELECT", "WITH")) or " RETURNING " in sql


def _is_undone(error: Exception) -> bool:
    cause: Any = error.__cause__
    code = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return (code or (error.args[0] if error.args else None)) in UNDONE
