"""Mutants of what holds against two faults at a time: a stall and a late reply, a lag and a cut."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutants.mutant import Mutant

__all__ = ["OF_TWO_FAULTS"]

ENGINE = "django_tasklock/_engine"
STORES = "django_tasklock/stores"
ON_ENGINE = "tests/integration/engine"
ON_STORES = "tests/integration/stores"

OF_TWO_FAULTS: Sequence[Mutant] = (
    Mutant(
        "permit that its own give-up releases", f"{ENGINE}/permits.py",
        "if any(queue.abandoned for queue in self._queues):", "if False:",
        [f"{ON_ENGINE}/test_late_permits.py"],
    ),
    Mutant(
        "greenlet that goes on in a forked child", f"{ENGINE}/steps.py",
        "    if lease_state.process != process:\n        _of_parents",
        "    if False:\n        _of_parents",
        [f"{ON_ENGINE}/test_forked_greenlets.py", "-k", "child_that_ends"],
    ),
    Mutant(
        "subscription on a connection that was dropped", f"{STORES}/redis/subscriber.py",
        "return clock.now() > self._heard + TRUST_SECONDS", "return False",
        [f"{ON_ENGINE}/test_dropped_subscriptions.py"],
    ),
    Mutant(
        "channel of an interrupted subscription", f"{STORES}/redis/subscriber.py",
        "            self.leave(channel, keep=False)\n            raise\n        return",
        "            raise\n        return",
        [f"{ON_ENGINE}/test_interrupted_subscription.py"],
    ),
    Mutant(
        "hand-over by a clock that was set forward", f"{STORES}/redis/waiter.py",
        "if passed < 0 or self._asked + passed > clock.now() + CLOCKS_DIFFER_SECONDS:",
        "if passed < 0:",
        [f"{ON_STORES}/test_queue_order.py"],
    ),
    Mutant(
        "block that hides its own error in an outage", f"{ENGINE}/aio/leaving.py",
        "            if error is None:\n                raise", "            raise",
        [f"{ON_ENGINE}/test_async_silent_releases.py"],
    ),
    Mutant(
        "cancelled call that waits for what is over", f"{ENGINE}/aio/driving.py",
        "        self._undone = True\n", "",
        [f"{ON_ENGINE}/test_async_cancelled.py"],
    ),
    Mutant(
        "block that cools though it was cancelled before it began", f"{ENGINE}/aio/verbs.py",
        "            use.cool(None)\n", "",
        [f"{ON_ENGINE}/test_async_kinds.py"],
    ),
    Mutant(
        "quorum: late vote that releases a later lease", f"{STORES}/quorum/election.py",
        "            if lease.is_over():\n                self.release_at(lease, member, b",
        "            if True:\n                self.release_at(lease, member, b",
        [f"{ON_STORES}/test_quorum_late_votes.py", "-k", "earlier_question"],
    ),
    Mutant(
        "quorum: lease that a member gets again without its fence", f"{STORES}/quorum/upkeep.py",
        "                self._granted(lease, answer, member)",
        "                lease.proofs[member.number] = answer.proof",
        [f"{ON_STORES}/test_quorum_late_votes.py", "-k", "gets_again"],
    ),
    Mutant(
        "ZooKeeper: acquire that does not see its first node", f"{STORES}/zookeeper/verbs.py",
        "z.children(lock) if z.again else z.children_if_any(lock)", "z.children_if_any(lock)",
        [f"{ON_STORES}/test_zookeeper_trouble.py", "-k", "made_again"],
    ),
    Mutant(
        "database: connection of the parent's in a forked child",
        f"{STORES}/database/connections.py",
        "        self._idle: deque[_Slot] = deque()\n",
        "        self._pid = os.getpid()\n        self._idle: deque[_Slot] = deque()\n",
        [f"{ON_STORES}/test_database_trouble.py", "-k", "forked"],
    ),
    Mutant(
        "database: waiter that could not join", f"{STORES}/database/waiter.py",
        "        if self._store.notifications is not None:\n"
        "            self._store.notifications.leave",
        "        if position is not None and self._store.notifications is not None:\n"
        "            self._store.notifications.leave",
        [f"{ON_STORES}/test_database_trouble.py", "-k", "could_not_join"],
    ),
    Mutant(
        "cache: acquire over the next holder's key", f"{STORES}/cache.py",
        "if token_of(held) == token and not self._ends_soon(held):", "if token_of(held) == token:",
        [f"{ON_STORES}/test_cache_late_grants.py"],
    ),
)  # fmt: skip
