"""A process's client of ZooKeeper, its session, and the thread that looks after both."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from kazoo.exceptions import AuthFailedError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, KeeperState

from ..._compat.kazoo import on_connected
from ..._compat.native_threads import new_lock, start_thread
from ..._values import clock
from .leases import Leases
from .session import HEARTBEAT_SHARE, Session
from .workers import Workers

__all__ = ["Link"]

LOOK_SECONDS = 0.02
"""how often a call looks whether the client is connected"""
LONGEST_PAUSE_SECONDS = 1.0
SHORTEST_PAUSE_SECONDS = 0.001

_links: WeakSet[Link] = WeakSet()
_inherited: list[Link] = []
"""what a forked child has of its parent's: to collect it would do things to the parent's session"""


class Link:
    """One client, used by the threads of one process.

    Args:
        new_client: makes a client of kazoo, not yet started.
    """

    def __init__(self, new_client: Callable[[], Any]) -> None:
        self.pid = os.getpid()
        self.workers = Workers()
        self.leases = Leases()
        self.session = Session()
        self.client: Any = None
        self.ended: Exception | None = None
        """why the client has ended: another one is needed"""
        self.closed = False
        self._new_client = new_client
        self._starting = new_lock()
        self._connected = False
        self._wakeup = new_lock()
        self._wakeup.acquire()
        self._sleeps_until = 0.0

    def connected(self, deadline: float) -> Any:
        """The client, once it is connected. For the worker threads.

        Raises kazoo's timeout error if it is not connected until ``deadline``, on `clock.now`.
        """
        if self.client is None:
            with self._starting:
                if self.client is None:
                    self._start()
        while not self._connected:
            if self.ended is not None:
                raise self.ended
            if clock.now() >= deadline or self.closed:
                raise KazooTimeoutError("not connected")
            time.sleep(LOOK_SECONDS)
        return self.client

    def look_after(self, deadline: float) -> None:
        """Have the thread look at a lease at ``deadline``, on `clock.now`, or before."""
        if deadline < self._sleeps_until:
            with suppress(RuntimeError):  # It is woken already.
                self._wakeup.release()

    def _start(self) -> None:
        client = self._new_client()
        on_connected(client, clock.now, self._on_connected)
        client.add_listener(self._on_state)
        try:
            client.start_async()
            self.client = client
            start_thread(self._run)
        except BaseException as error:
            # Without its thread it would send no heartbeats: each lease would be lost.
            self.client = None
            client.stop()
            client.close()
            if isinstance(error, RuntimeError):
                raise OSError(str(error)) from error  # The system starts no thread now.
            raise
        atexit.register(self.close)
        _links.add(self)
        if self.closed:
            self._stop()  # It was closed before there was a client that could be stopped.

    def close(self) -> None:
        """End the session, and with it whatever it still holds."""
        if self._leave():
            self._stop()

    def close_soon(self) -> None:
        """`close`, for the garbage collector, which may run in a thread that this one waits for."""
        if self._leave():
            start_thread(self._stop)

    def _leave(self) -> bool:
        """Let no call begin any more. Returns whether there is a client to be stopped."""
        if self.closed or self.pid != os.getpid():
            return False
        self.closed = True
        return self.client is not None

    def _stop(self) -> None:
        atexit.unregister(self.close)
        with suppress(Exception):
            self.client.stop()
            self.client.close()

    def _on_connected(self, sent: float, timeout: float) -> None:
        if self.session.lost:
            self.session = Session()
        self.session.connected(sent, timeout)
        self._connected = True

    def _on_state(self, state: str) -> None:
        # In kazoo's own thread: it must not wait for anything.
        if state != KazooState.CONNECTED:
            self._connected = False
        if state == KazooState.LOST:
            self.session.lost = True
            self.leases.forget()
            state = self.client.client_state
            if state == KeeperState.AUTH_FAILED:
                self.ended = AuthFailedError()
            elif state == KeeperState.CLOSED:
                # Its thread has met something that kazoo does not handle, and logs.
                self.ended = KazooTimeoutError("the client has ended")

    def _run(self) -> None:
        """Send heartbeats, and delete the nodes of leases that are over."""
        beat = 0.0
        while not self.closed:
            now = clock.now()
            every = HEARTBEAT_SHARE * (self.session.timeout or LONGEST_PAUSE_SECONDS)
            if now >= beat:
                beat = now + every
                if self._connected:
                    self._send_heartbeat(self.session, now)
            if self.leases.is_due(now) and self._connected:
                self.workers.post(self._end_overdue)
            ends = min(beat, self.leases.next_end(now), now + LONGEST_PAUSE_SECONDS)
            self._sleeps_until = ends
            # A lease that came before that was set has not woken this thread.
            ends = min(ends, self.leases.next_end(now))
            self._wakeup.acquire(timeout=max(SHORTEST_PAUSE_SECONDS, ends - clock.now()))
            self._sleeps_until = 0.0

    def _send_heartbeat(self, session: Session, sent: float) -> None:
        def answered(result: Any) -> None:
            if result.successful():
                session.answered(sent)

        with suppress(Exception):  # Not connected any more.
            self.client.sync_async("/").rawlink(answered)

    def _end_overdue(self) -> None:
        with suppress(Exception):  # It is tried again.
            self.leases.end_overdue(self.client)


def _new_process() -> None:
    for link in _links:
        if link.client is not None:
            # At the end of the process it would wait for threads that this process does not have.
            atexit.unregister(link.client.handler.stop)
        atexit.unregister(link.close)
        _inherited.append(link)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_process)
