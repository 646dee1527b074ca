"""What the conductor does to the server: it forgets, is started again, or takes no writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import redis

from tests.chaos.history import now
from tests.servers import RedisServer, forget_kept

__all__ = ["SERVER_FOLDER", "ServerFaults"]

SERVER_FOLDER = "redis"
"""in the folder of the run, where the server keeps what it has after a kill"""
Note = Callable[[str, float], None]
After = Callable[[float, Callable[[], None]], None]


class ServerFaults:
    """Each method is one fault.

    ``note`` writes one down, with the moment at which it began; ``after`` calls its end so many
    seconds later.
    """

    def __init__(
        self, server: RedisServer, folder: Path, chance: Random, note: Note, after: After
    ) -> None:
        self._server = server
        self._kept = folder / SERVER_FOLDER
        self._chance = chance
        self._note = note
        self._after = after
        self.busy = False
        """whether the server takes no writes now"""
        self._redis: redis.Redis = redis.Redis.from_url(server.url, socket_timeout=5)

    def restart_with_data(self) -> None:
        """Killed, and started again with all that it had answered."""
        since = now()
        self._server.kill()
        self._server.restart()
        self._note("redis restarted", since)

    def restart_empty(self) -> None:
        """Killed, and started again without anything."""
        since = now()
        self._server.kill()
        forget_kept(self._kept)
        self._server.restart()
        self._note("redis restarted", since)
        self._note("emptied", since)

    def forget(self) -> None:
        """All keys are removed, and connections stay."""
        since = now()
        self._redis.flushdb()
        self._note("emptied", since)

    def read_only(self) -> None:
        """As in a failover: the server is a replica of one that is not there, for a while."""
        since = now()
        self.busy = True
        self._redis.replicaof("127.0.0.1", 1)

        def over() -> None:
            self._redis.replicaof("NO", "ONE")
            self.busy = False
            self._note("read only", since)

        self._after(self._chance.choice([0.1, 1, 3]) * self._chance.uniform(0.5, 1), over)

    def out_of_memory(self) -> None:
        """Under noeviction: what needs memory is refused, for a while."""
        since = now()
        self.busy = True
        self._redis.config_set("maxmemory", 1)

        def over() -> None:
            self._redis.config_set("maxmemory", 0)
            self.busy = False
            self._note("out of memory", since)

        self._after(self._chance.choice([0.1, 1, 3]) * self._chance.uniform(0.5, 1), over)
