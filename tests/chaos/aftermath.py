"""What is left in the store when the players are at rest."""

from __future__ import annotations

import redis

from tests.chaos.bounds import LATE_SECONDS, LONGEST_TTL_SECONDS, NAMES
from tests.chaos.history import History

__all__ = ["write_aftermath"]


def write_aftermath(url: str, history: History) -> None:
    """Take each lock once, and write down what is left in the store after that."""
    from django_tasklock import locks

    client: redis.Redis = redis.Redis.from_url(url)
    for name in NAMES:
        # Whoever is next in a queue of the dead is passed over, and what was left lapses.
        lease = locks.acquire(name, ttl=1, wait=LONGEST_TTL_SECONDS + LATE_SECONDS)
        if lease is None:
            history.write("left", name=name, what=f"{name} cannot be had: {locks.get(name)}")
        else:
            lease.release()
    keyspace = getattr(locks.store, "keyspace")  # noqa: B009
    index, fences = keyspace.index, keyspace.fences
    for key in client.scan_iter(count=1000):
        if key == fences:
            # That of an expired lease goes with its entry in the index.
            indexed = set(client.zrange(index, 0, -1))
            fields = [each for each in client.hkeys(key) if each.strip() and each not in indexed]
            if fields:
                history.write("left", what=f"fences of {fields}")
        elif key == keyspace.history:
            if client.ttl(key) < 0:
                history.write("left", what="a history that stays for ever")
        elif key == index:
            now = client.time()[0] * 1000  # Its clock may be wrong.
            live = client.zrangebyscore(key, now, "+inf")
            if live:
                history.write("left", what=f"{live} in the index")
        elif key.endswith(b" cleared") and 0 < client.pttl(key) <= LONGEST_TTL_SECONDS * 1000:
            pass  # For the rest of the lease that was cleared.
        else:
            history.write("left", what=f"the key {key!r}, a {client.type(key)!r}")
