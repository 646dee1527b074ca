"""The connection of one store to ZooKeeper: one client, and so one session, in each process."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
    UnimplementedError,
)
from kazoo.handlers.threading import KazooTimeoutError

from ..._values import clock
from ...exceptions import StoreUnavailable
from .link import Link
from .options import Options
from .requests import Requests
from .workers import NoAnswer

__all__ = ["Connection"]

CUT = (
    ConnectionClosedError,
    ConnectionLoss,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
"""errors after which a call is made again, on the next connection, within its time"""
RECONNECT_SECONDS = 0.5
"""the longest pause between two tries to connect, without jitter; kazoo's own is an hour"""
GRACE_SECONDS = 1.0
"""how much longer than its time a caller waits for the thread that makes the call"""

T = TypeVar("T")


class Connection:
    """Makes calls to ZooKeeper; all threads of a process share it.

    Args:
        store: the store's alias, for errors.
        options: where ZooKeeper is, and how long a call may take.
    """

    def __init__(self, store: str, options: Options) -> None:
        self._store, self.options = store, options
        self._links: dict[int, Link] = {}
        """by the process: a forked child must leave its parent's alone"""

    def call(self, verb: Callable[[Requests], T]) -> T:
        """Return what ``verb`` returns.

        It is called again if the connection was cut meanwhile, so what it did may have been done
        before: `Requests.again` says so. Raises `StoreUnavailable`.
        """
        link, seconds = self.link(), self.options.seconds
        deadline = clock.now() + seconds
        try:
            answer: T = link.workers.run(
                partial(self._make, link, verb, deadline), seconds + GRACE_SECONDS
            )
            return answer
        except (KazooTimeoutError, NoAnswer) as error:
            raise self._silent(f"no answer within {seconds:g} s") from error
        except NoAuthError as error:
            raise self._silent(
                f"ZooKeeper refuses what the store must do below {self.options.prefix}, where it "
                "reads, creates, writes and deletes nodes (NoAuth): see the option AUTH and the "
                "ACL of that node"
            ) from error
        except AuthFailedError as error:
            raise self._silent("ZooKeeper does not accept the option AUTH") from error
        except UnimplementedError as error:
            raise self._silent("the server is older than ZooKeeper 3.5") from error
        except (KazooException, OSError) as error:
            raise self._silent(f"{type(error).__name__}: {error}") from error

    def post(self, verb: Callable[[Requests], object]) -> None:
        """Make a call without waiting for it; what it raises is ignored."""
        link = self.link()
        deadline = clock.now() + self.options.seconds
        link.workers.post(partial(self._make, link, verb, deadline))

    def link(self) -> Link:
        """The client of this process, with all that belongs to it."""
        pid = os.getpid()
        link = self._links.get(pid)
        if link is None or link.ended or link.closed:
            new = Link(partial(_new_client, self.options))
            if link is None:
                # Of two threads that come here at the same time both get the same one.
                link = self._links.setdefault(pid, new)
            else:
                link.close_soon()  # It would keep its threads.
                link = self._links[pid] = new
            weakref.finalize(self, new.close_soon).atexit = False
        return link

    def close_idle(self) -> None:
        """End the session of this process, if it holds no lease. The next call makes a new one."""
        pid = os.getpid()
        link = self._links.get(pid)
        if link is not None and not link.leases.any_left():
            self._links.pop(pid, None)
            link.close_soon()

    def _make(self, link: Link, verb: Callable[[Requests], T], deadline: float) -> T:
        again = False
        while True:
            try:
                client = link.connected(deadline)
                return verb(Requests(client, link, deadline, self.options, again))
            except CUT:
                if clock.now() >= deadline:
                    raise
                again = True

    def _silent(self, reason: str) -> StoreUnavailable:
        return StoreUnavailable(self._store, reason)


def _new_client(options: Options) -> Any:
    retry = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": RECONNECT_SECONDS}
    return KazooClient(
        options.hosts,
        timeout=options.session_seconds,
        auth_data=list(options.auth),
        connection_retry=retry,
        **options.tls,
    )
