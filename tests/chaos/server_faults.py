"""What the conductor does to the server.

It forgets, is started again, takes no writes, is replaced, or sees the time wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import redis

from tests.chaos.history import now
from tests.chaos.pair import Pair

__all__ = ["ServerFaults"]

HOUR_SECONDS = 3600
Note = Callable[[str, float], None]
After = Callable[[float, Callable[[], None]], None]


class ServerFaults:
    """Each method is one fault.

    ``client`` reaches the master. ``note`` writes a fault down, with the moment at which it began;
    ``after`` calls its end so many seconds later; ``follow`` has all connections go to another
    master.
    """

    def __init__(
        self,
        pair: Pair,
        client: redis.Redis,
        chance: Random,
        note: Note,
        after: After,
        follow: Callable[[], None],
    ) -> None:
        self._pair = pair
        self._redis = client
        self._chance = chance
        self._note = note
        self._after = after
        self._follow = follow
        self.busy = False
        """whether a fault of the server goes on, and another one has to wait"""

    def all(self) -> list[Callable[[], None]]:
        """Those that can be had here."""
        found = [
            self.restart_with_data, self.restart_empty, self.forget, self.read_only,
            self.out_of_memory, self.hand_over, self.promote,
        ]  # fmt: skip
        if self._pair.clock.can_step:
            found += [self.clock_forward, self.clock_back]
        return found

    def restart_with_data(self) -> None:
        """Killed, and started again with all that it had answered."""
        since = now()
        self._pair.restart(empty=False)
        self._note("redis restarted", since)

    def restart_empty(self) -> None:
        """Killed, and started again without anything."""
        since = now()
        self._pair.restart(empty=True)
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

    def hand_over(self) -> None:
        """A planned failover: the replica takes over, with all that was answered. Who was connected
        finds a server that takes no writes, for a while."""
        since = now()
        if not self._pair.follows() or not self._pair.hand_over():
            self._note("redis restarted", since)  # It took no writes while it tried.
            return
        self.busy = True

        def over() -> None:
            self._follow()
            self.busy = False
            self._note("failed over", since)

        self._after(self._chance.choice([0, 0.1, 1]), over)

    def promote(self) -> None:
        """The server is killed, and its replica takes over, which may not have the last writes."""
        if not self._pair.follows():
            return
        since = now()
        self._pair.promote()
        self._follow()
        self._note("failed over", since)
        self._note("emptied", since)

    def clock_forward(self) -> None:
        """The server's clock is set an hour forward, and every lease is over."""
        since = now()
        self._pair.clock.step(HOUR_SECONDS)
        self._note("emptied", since)

    def clock_back(self) -> None:
        """The server's clock is set an hour back, for a while: no lease ends then by itself, and
        every one ends when the clock is right again."""
        since = now()
        self.busy = True
        self._pair.clock.step(-HOUR_SECONDS)

        def over() -> None:
            ended = now()
            self._pair.clock.step(HOUR_SECONDS)
            self.busy = False
            self._note("clock back", since)
            self._note("emptied", ended)

        self._after(self._chance.choice([0.1, 1, 3]) * self._chance.uniform(0.5, 1), over)
