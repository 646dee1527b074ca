"""The server of a run, and its replica, which may take its place."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from tests.chaos.server_clock import ServerClock
from tests.servers import RedisServer, find_binary, forget_kept, kept_in

__all__ = ["Pair"]

HAND_OVER_MILLISECONDS = 1000
"""after which a server gives up to hand over to its replica"""


class Pair:
    """Two servers, of which each may be the ``master``; the other one copies it.

    Both keep what they have answered, in a folder of their own.
    """

    def __init__(self, folder: Path) -> None:
        self.clock = ServerClock(folder)
        binary = self.clock.binary(find_binary())
        self._kept: dict[int, Path] = {}
        both = [self._start(binary, folder / name) for name in ("redis", "replica")]
        self.master, self._replica = both
        self._copy()

    @classmethod
    @contextlib.contextmanager
    def own(cls, folder: Path) -> Iterator[Pair]:
        """A pair for the time of the block."""
        pair = cls(folder)
        try:
            yield pair
        finally:
            pair.master.stop()
            pair._replica.stop()

    @property
    def address(self) -> tuple[str, int]:
        """Of the master."""
        return ("127.0.0.1", self.master.port)

    def restart(self, *, empty: bool) -> None:
        """SIGKILL for the master, and another one in its place."""
        self.master.kill()
        if empty:
            forget_kept(self._kept[self.master.port])
        self._restart(self.master)

    def hand_over(self) -> bool:
        """The master and its replica change their parts, as in a planned failover; nothing is lost.

        False: the replica does not follow the master closely enough, and nothing is changed.
        """
        to = ("TO", "127.0.0.1", self._replica.port, "TIMEOUT", HAND_OVER_MILLISECONDS)
        with self._asked(self.master) as client:
            try:
                client.execute_command("FAILOVER", *to)
            except redis.ResponseError:
                return False
            while client.info("replication")["master_failover_state"] != "no-failover":
                time.sleep(0.005)
            changed: bool = client.info("replication")["role"] == "slave"
        if changed:
            self.master, self._replica = self._replica, self.master
        return changed

    def promote(self) -> None:
        """The master is killed, and its replica takes its place, perhaps without the last writes.
        The former master becomes the replica."""
        self.master.kill()
        with self._asked(self._replica) as client:
            client.replicaof("NO", "ONE")
        self.master, self._replica = self._replica, self.master
        self._restart(self._replica)
        self._copy()

    def follows(self) -> bool:
        """Whether the replica is connected to the master."""
        with self._asked(self._replica) as client:
            return bool(client.info("replication")["master_link_status"] == "up")

    def _start(self, binary: Path, folder: Path) -> RedisServer:
        server = RedisServer.start(binary, (*kept_in(folder), "--repl-diskless-sync-delay", "0"))
        self._kept[server.port] = folder
        return server

    def _restart(self, server: RedisServer) -> None:
        """Return when the server has read all that it keeps."""
        server.restart()
        with self._asked(server) as client:
            while client.info("persistence")["loading"]:
                time.sleep(0.005)

    def _copy(self) -> None:
        with self._asked(self._replica) as client:
            client.replicaof("127.0.0.1", str(self.master.port))

    @contextlib.contextmanager
    def _asked(self, server: RedisServer) -> Iterator[Any]:
        client = redis.Redis.from_url(server.url, socket_timeout=5, decode_responses=True)
        try:
            yield client
        finally:
            client.close()
