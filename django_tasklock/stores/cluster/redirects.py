"""What to do after a node of the cluster did not carry a script out."""

from __future__ import annotations

import time
from contextlib import suppress

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    MovedError,
    ReadOnlyError,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..._compat.redis import redirection
from ..._values import clock
from ..._values.tokens import chance
from ...exceptions import StoreUnavailable
from ..redis.script import Script
from ..redis.server_client import ReplyLost
from .nodes import Node
from .shard_subscriber import ELSEWHERE
from .topology import Topology

__all__ = ["Redirects"]

FIRST_PAUSE_SECONDS = 0.005
LONGEST_PAUSE_SECONDS = 0.25
MOVES_WITHOUT_PAUSE = 3
"""two nodes that do not agree yet may each name the other one"""
ASKING = b"*1\r\n$6\r\nASKING\r\n"
"""sent before a command to a node that is about to get the command's slot"""
NOT_ALL_HERE = "non local key"
"""part of the error of a script that removed a key, and used it again, while its slot migrated"""


class Redirects:
    """For one call: where to send the script next, for a limited time.

    A node that says MOVED, ASK, TRYAGAIN, CLUSTERDOWN, LOADING or READONLY has not carried the
    script out, nor has one to which no connection can be made. So such a script may be sent again,
    also if it may not run twice.
    """

    def __init__(
        self, topology: Topology, bucket: int, script: Script, patience: float, *, again: bool
    ) -> None:
        """``patience``: for how many seconds from now the call goes on. ``again``: whether the
        script may run twice."""
        self._topology = topology
        self._bucket = bucket
        self._script = script
        self._patience = patience
        self._deadline = clock.now() + patience
        self._again = again
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._moves = 0
        self.before = b""
        """the command to send right before the script"""

    def next_node(self, error: StoreUnavailable, node: Node | None) -> Node | None:
        """Return where to send the script now; None: it is not known yet.

        ``error`` was raised for the last attempt, at ``node``; None: no node was known. Sleeps
        where the cluster needs time. Raises ``error``, or one that says how long it was tried.
        """
        cause, asked, self.before = error.__cause__, bool(self.before), b""
        if isinstance(error, ReplyLost):
            self._topology.mark_stale(node)
            raise error
        if isinstance(cause, MovedError) and node is not None:
            self._topology.learn(redirection(cause), node)
            self._moves += 1
            if self._moves <= MOVES_WITHOUT_PAUSE:
                return self._topology.known_node(self._bucket)
        elif isinstance(cause, AskError) and node is not None:
            # The waiters are subscribed where the slot still is, until it has moved. Where it
            # moves to, a script would take them for dead: it waits instead.
            if not asked and not self._script.notifies:
                self.before = ASKING
                return self._topology.at(redirection(cause), node)
        elif isinstance(cause, RedisTimeoutError | TimeoutError):
            # The time is over. But if another node serves the slot by now, that one may answer.
            self._topology.mark_stale(node)
            with suppress(StoreUnavailable):
                self._topology.refresh()
            now = self._topology.known_node(self._bucket)
            if not self._again or now is node or node is None:
                raise error
            return now
        elif not _may_pass(cause) or not self._topology.is_known():
            raise error
        self._topology.mark_stale(node)
        self._pause(error)
        # If no other node answers either, the cluster is down, and there is nothing to wait for.
        self._topology.refresh()
        return self._topology.known_node(self._bucket)

    def _pause(self, error: StoreUnavailable) -> None:
        seconds = self._pause_seconds * chance.uniform(0.5, 1.0)
        self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)
        if clock.now() + seconds > self._deadline:
            cause = error.__cause__
            said = f"{type(cause).__name__}: {cause}" if isinstance(cause, RedisError) else error
            raise StoreUnavailable(
                error.store, f"for {self._patience:g} s no node of the cluster did it ({said})"
            ) from error
        time.sleep(seconds)


def _may_pass(cause: BaseException | None) -> bool:
    """Whether an error is one that ends by itself, when the cluster has changed."""
    if isinstance(cause, AuthenticationError | AuthorizationError):
        return False
    passing = (*ELSEWHERE, BusyLoadingError, ReadOnlyError, RedisConnectionError, OSError)
    return isinstance(cause, passing) or NOT_ALL_HERE in str(cause)
