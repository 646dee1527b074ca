"""Mutants of the stores that are not scripts alone: what the scripts compare, they compare too."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutants.mutant import Mutant

__all__ = ["OF_STORES"]

STORES = "django_tasklock/stores"
ON_STORES = "tests/integration/stores"
ON_ENGINE = "tests/integration/engine"
CONTRACT = f"{ON_STORES}/test_store_contract.py"
AT_ONCE = f"{ON_STORES}/test_quorum_at_once.py"
HALVES = "tests/unit/compat/test_private_apis.py"


def _on(store: str, tests: str) -> Sequence[str]:
    """The contract's tests of one store."""
    return [CONTRACT, "-k", f"{store} and ({tests})"]


OF_STORES: Sequence[Mutant] = (
    # A cluster runs the same scripts, each with other keys.
    Mutant(
        "cluster: release without its token compare", f"{STORES}/lua/release.lua",
        "if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then", "if false then",
        _on("redis-cluster", "release_needs_the_token or late_release"),
    ),
    Mutant(
        "cluster: extension without its token compare", f"{STORES}/lua/extend.lua",
        "if value_of_lock(KEYS[i]) == ARGV[at + 1] then", "if value_of_lock(KEYS[i]) then",
        _on("redis-cluster", "extend_needs_the_token or late_extend"),
    ),
    Mutant(
        "cluster: queue that is served last first", f"{STORES}/lua/release.lua",
        "local waiting = redis.call('ZRANGE',", "local waiting = redis.call('ZREVRANGE',",
        _on("redis-cluster", "in_order"),
    ),
    Mutant(
        "memory: release without its token compare", f"{STORES}/memory/memory_store.py",
        "if held is None or token not in (None, held.token):", "if held is None:",
        _on("memory", "release_needs_the_token or late_release"),
    ),
    Mutant(
        "memory: extension without its token compare", f"{STORES}/memory/memory_store.py",
        "            if held is None or held.token != token:\n                return False",
        "            if held is None:\n                return False",
        _on("memory", "extend_needs_the_token or late_extend"),
    ),
    Mutant(
        "memory: queue that is served last first", f"{STORES}/memory/memory_waiter.py",
        "return next(iter(self.waiting(name)), None)",
        "return next(reversed(self.waiting(name)), None)",
        _on("memory", "in_order"),
    ),
    Mutant(
        "cache: release and extension without their token compare", f"{STORES}/cache.py",
        "if record is None or record.token != token:", "if record is None:",
        _on("locmem", "needs_the_token or a_late"),
    ),
    Mutant(
        "cache: clear without its token compare", f"{STORES}/cache.py",
        "if token_of(held) != token or self._ends_soon(held):", "if self._ends_soon(held):",
        _on("locmem", "clear_with_a_token"),
    ),
    Mutant(
        "database: release and extension without their token compare",
        f"{STORES}/database/statements.py",
        '_OURS = "lock_key = %(key)s AND token = %(token)s"', '_OURS = "lock_key = %(key)s"',
        _on("database-store-sqlite", "needs_the_token or a_late"),
    ),
    Mutant(
        "database: batch of extensions without their token compare",
        f"{STORES}/database/statements.py",
        'sql = f"UPDATE {TABLE} SET expires = {self.now} + {ttl_of_row} WHERE {where}"',
        'where = " OR ".join(f"lock_key = %(key{at})s" for at in range(len(batch)))\n'
        '        sql = f"UPDATE {TABLE} SET expires = {self.now} + {ttl_of_row} WHERE {where}"',
        _on("database-store-sqlite", "a_batch_is_extended"),
    ),
    Mutant(
        "database: waiter that does not hear of an adopter", f"{STORES}/database/waiter.py",
        " or self._is_of_another(holder, owner)", "",
        [f"{ON_ENGINE}/test_handing_on.py", "-k", "hears_of_an_adopter and database-store-sqlite"],
    ),
    Mutant(
        "database: clear without its token compare", f"{STORES}/database/statements.py",
        "owner = '', token = '' \"\n            f\"WHERE {_OURS} AND",
        "owner = '', token = '' \"\n            f\"WHERE lock_key = %(key)s AND",
        _on("database-store-sqlite", "clear_with_a_token"),
    ),
    Mutant(
        "database: extension of a lease that is over", f"{STORES}/database/statements.py",
        'f"WHERE {_OURS} AND expires > {self.now}"\n        )\n\n    @cached_property\n'
        "    def rewrite",
        'f"WHERE {_OURS} AND expires > 0"\n        )\n\n    @cached_property\n'
        "    def rewrite",
        _on("database-store-sqlite", "bring_a_lease_back"),
    ),
    Mutant(
        "database: queue that is served last first", f"{STORES}/database/queue_statements.py",
        'f"AND queued.alive > {now} AND queued.id < %(position)s)"',
        'f"AND queued.alive > {now} AND queued.id > %(position)s)"',
        [f"{ON_STORES}/test_database_queue.py", "-k", "sqlite and in_the_order"],
    ),
    Mutant(
        "zookeeper: release without its token compare", f"{STORES}/zookeeper/verbs.py",
        "if first is None or first.lease.token != token or first.lease.waiting:\n"
        "            return False\n        return z.delete",
        "if first is None or first.lease.waiting:\n"
        "            return False\n        return z.delete",
        _on("zookeeper", "release_needs_the_token or late_release"),
    ),
    Mutant(
        "zookeeper: extension without its token compare", f"{STORES}/zookeeper/verbs.py",
        "            if first is None or first.lease.token != token or first.lease.waiting:\n"
        "                return False\n            node",
        "            if first is None or first.lease.waiting:\n"
        "                return False\n            node",
        _on("zookeeper", "extend_needs_the_token or late_extend"),
    ),
    Mutant(
        "zookeeper: clear without its token compare", f"{STORES}/zookeeper/verbs.py",
        "if first is None or token not in (None, first.lease.token):", "if first is None:",
        _on("zookeeper", "clear_with_a_token"),
    ),
    Mutant(
        "zookeeper: queue that is served last first", f"{STORES}/zookeeper/paths.py",
        "return sorted(numbers, key=lambda child: (numbers[child], child))",
        "return sorted(numbers, key=lambda child: (numbers[child], child), reverse=True)",
        ["tests/unit/stores/test_zookeeper_paths.py"],
    ),
    Mutant(
        "quorum: half of the members", f"{STORES}/quorum/counting.py",
        "return size // 2 + 1", "return size // 2",
        ["tests/unit/stores/test_quorum_counting.py"],
    ),
    Mutant(
        "quorum: refusal of an earlier question that takes a vote away",
        f"{STORES}/quorum/election.py",
        "elif lease.question == question:", "else:",
        [AT_ONCE, "-k", "takes_no_later_vote_away"],
    ),
    Mutant(
        "quorum: question beside a release that is on its way", f"{STORES}/quorum/election.py",
        "if lease.fence is not None or lease.is_releasing(member.number):",
        "if lease.fence is not None:",
        [AT_ONCE, "-k", "release_is_on_its_way"],
    ),
    Mutant(
        "reply of another command", "django_tasklock/_compat/redis.py",
        "elif type(reply) is list and len(reply) == 2 and reply[0] == number:",
        "elif type(reply) is list and len(reply) == 2:",
        [HALVES, "-k", "HalvesOfAnExchange"],
    ),
    Mutant(
        "reply of another command, in one text", "django_tasklock/_compat/redis.py",
        'if reply.startswith(number + b" "):', 'if b" " in reply:',
        [HALVES, "-k", "HalvesOfAnExchange"],
    ),
    Mutant(
        "quorum: command beside the rest of a reply", "django_tasklock/_compat/redis_halves.py",
        "if reader.has_data():", "if False:",
        [HALVES, "-k", "HalvesOfAnExchange"],
    ),
    Mutant(
        "idle connections to a demoted server are kept", f"{STORES}/redis/pool.py",
        "if isinstance(error, CONNECTION_ERRORS) or READ_ONLY in str(error):", "if False:",
        ["tests/integration/stores/test_connections.py", "-k", "Demoted"],
    ),
    Mutant(
        "quorum: release on a connection that was cut", f"{STORES}/redis/begun.py",
        "if not (look and is_cut(own[0])) and send(", "if send(",
        [AT_ONCE, "-k", "connections_that_were_cut"],
    ),
    Mutant(
        "quorum: release whose reply was lost", f"{STORES}/redis/quorum_member.py",
        "if isinstance(error, RedisConnectionError):", "if False:",
        [AT_ONCE, "-k", "whose_reply_is_lost"],
    ),
    Mutant(
        "quorum: connection given up with a reply on its way", f"{STORES}/redis/begun.py",
        "        self._connections._close(self._own)",
        "        self._connections._keep(self._own, False)",
        [AT_ONCE, "-k", "threads_are_all_stuck"],
    ),
    # What the scripts keep beside the lock itself.
    Mutant(
        "permit that is taken twice after a lost reply", f"{STORES}/lua/acquire_any.lua",
        "  if held[i] == value then mine = i end\n", "",
        [f"{ON_ENGINE}/test_slots_on_redis.py", "-k", "lost_on_the_way"],
    ),
    Mutant(
        "permit past the queue of its own lock", f"{STORES}/lua/acquire_any.lua",
        "if redis.call('EXISTS', queue) == 1 then", "if false then",
        [f"{ON_ENGINE}/test_slots_on_redis.py", "-k", "slept_through"],
    ),
    Mutant(
        "fence that is raised for the next lease", f"{STORES}/lua/raise_fence.lua",
        "if value_of_lock(KEYS[1]) ~= ARGV[1] then return 0 end", "",
        [CONTRACT, "-k", "redis-pickle and never_lowered"],
    ),
    Mutant(
        "fence that is lowered", f"{STORES}/lua/raise_fence.lua",
        "if fence < least then", "if true then",
        [CONTRACT, "-k", "redis-pickle and never_lowered"],
    ),
    Mutant(
        "index that keeps what has ended by itself", f"{STORES}/lua/add_to_index.lua",
        "if #over > 0 then", "if false then",
        [f"{ON_STORES}/test_handover.py", "-k", "though_nobody_lists"],
    ),
    Mutant(
        "hand-over without the new end in the index", f"{STORES}/lua/hand_over.lua",
        "  redis.call('ZADD', index, math.floor(now / 1000) + ttl, name)\n", "",
        [f"{ON_STORES}/test_handover.py", "-k", "until_its_new_lease_ends"],
    ),
    Mutant(
        "quorum: late vote with a fence of its own", f"{STORES}/quorum/election.py",
        "elif lease.fence is not None and (grant.fence or 0) < lease.fence:", "elif False:",
        [AT_ONCE, "-k", "agreed_on"],
    ),
    Mutant(
        "takeover of a lease that was adopted meanwhile", "django_tasklock/_engine/acquiring.py",
        "if now is not None and (now.token, now.owner) != (holder.token, holder.owner):",
        "if False:",
        [f"{ON_ENGINE}/test_takeover.py", "-k", "goes_on_in_another"],
    ),
)  # fmt: skip
