"""The mutants: what is taken out, where, and the tests that must notice."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutants.mutant import Mutant
from tests.mutants.of_stores import OF_STORES
from tests.mutants.of_tasks import OF_TASKS
from tests.mutants.of_two_faults import OF_TWO_FAULTS
from tests.mutants.of_updates import OF_UPDATES

__all__ = ["MUTANTS", "Mutant"]

SCRIPTS = "django_tasklock/stores/lua"
ENGINE = "django_tasklock/_engine"
OPERATORS = "django_tasklock/operators"
ON_STORES = "tests/integration/stores"
ON_ENGINE = "tests/integration/engine"


MUTANTS: Sequence[Mutant] = (
    *OF_STORES,
    *OF_TASKS,
    *OF_TWO_FAULTS,
    *OF_UPDATES,
    # What the scripts on the server protect.
    Mutant(
        "release without its token compare", f"{SCRIPTS}/release.lua",
        "if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then", "if false then",
        [f"{ON_STORES}/test_store_contract.py", "-k", "Redis"],
        chaos=True,
    ),
    Mutant(
        "extension without its token compare", f"{SCRIPTS}/extend.lua",
        "if value_of_lock(KEYS[i]) == ARGV[at + 1] then", "if value_of_lock(KEYS[i]) then",
        [f"{ON_STORES}/test_store_contract.py", "-k", "Redis"],
        chaos=True,
    ),
    Mutant(
        "clear without its token compare", f"{SCRIPTS}/clear.lua",
        "if not held or (ARGV[2] and held ~= ARGV[2]) then return 0 end",
        "if not held then return 0 end",
        [f"{ON_STORES}/test_handover.py"],
    ),
    Mutant(
        "clear of many without the token compare", f"{SCRIPTS}/clear_many.lua",
        "done[i] = held and held == ARGV[2 * i] and 1 or 0", "done[i] = held and 1 or 0",
        ["tests/integration/operators/test_clear_many.py"],
    ),
    Mutant(
        "acquire that refuses its own token after a lost reply", f"{SCRIPTS}/acquire.lua",
        "if held == value then", "if false then",
        [f"{ON_STORES}/test_store_contract.py", "-k", "Redis"],
    ),
    Mutant(
        "all or none that leaves one behind", f"{SCRIPTS}/acquire_all.lua",
        "  if held and held ~= value then return",
        "  if not held then redis.call('SET', key, value, 'PX', ttl) end\n"
        "  if held and held ~= value then return",
        [f"{ON_STORES}/test_store_contract.py", "-k", "none_is_granted_if_one"],
    ),
    Mutant(
        "all of several, refused to their own values after a lost reply",
        f"{SCRIPTS}/acquire_all.lua",
        "if held and held ~= value then", "if held then",
        [f"{ON_ENGINE}/test_several.py", "-k", "lost_once"],
    ),
    Mutant(
        "all of several past the queue of a lease that expired", f"{SCRIPTS}/acquire_all.lua",
        "if not held and redis.call('EXISTS', queue) == 1 then", "if false then",
        [f"{ON_ENGINE}/test_several.py", "-k", "waits_in_the_queue"],
    ),
    Mutant(
        "all of several, interrupted before each has its lease", f"{ENGINE}/all_at_once.py",
        "            renewal.abandon(name, self._tokens[name], left, self._store)",
        "            del name, left",
        [f"{ON_ENGINE}/test_several.py", "-k", "TestEveryInstruction and not reentrant"],
    ),
    Mutant(
        "acquire past the queue of a lease that expired", f"{SCRIPTS}/acquire.lua",
        "if redis.call('EXISTS', queue) == 1 then", "if false then",
        [f"{ON_STORES}/test_handover.py", f"{ON_STORES}/test_queue_order.py",
         f"{ON_ENGINE}/test_waiting.py"],
        chaos=True,
    ),
    Mutant(
        "queue that is served last first", f"{SCRIPTS}/release.lua",
        "local waiting = redis.call('ZRANGE',", "local waiting = redis.call('ZREVRANGE',",
        [f"{ON_ENGINE}/test_waiting.py", f"{ON_ENGINE}/test_waiters.py"],
        chaos=True,
    ),
    Mutant(
        "hand-over to a waiter that is dead", f"{SCRIPTS}/notify_waiters.lua",
        "local to = (counts[2 * i] > 0 or member == me) and found or dead", "local to = found",
        [f"{ON_STORES}/test_handover.py", f"{ON_STORES}/test_queue_order.py"],
    ),
    Mutant(
        "waiter that leaves with the lock it was handed", f"{SCRIPTS}/leave_queue.lua",
        "if held == ARGV[2] then return fence end", "",
        [f"{ON_STORES}/test_handover.py"],
    ),
    Mutant(
        "waiter that loses its place when it asks again", f"{SCRIPTS}/join_queue.lua",
        "number = redis.call('ZSCORE', queue, before) or number", "number = ''",
        [f"{ON_STORES}/test_queue_order.py", f"{ON_ENGINE}/test_waiters.py"],
        chaos=True,
    ),
    Mutant(
        "fence that follows the clock back", f"{SCRIPTS}/draw_fence.lua",
        "if last >= tonumber(drawn) then drawn = string.format('%.0f', last + 1) end", "",
        [f"{ON_STORES}/test_outage.py", f"{ON_ENGINE}/test_service.py"],
    ),
    Mutant(
        "waiter behind a dead one that never looks at the holder", f"{ENGINE}/waiting.py",
        "left = min(left, ahead * LATER_OWNER_CHECK_SECONDS * chance.uniform(0.5, 1.0))", "pass",
        [f"{ON_ENGINE}/test_takeover.py"],
    ),
    Mutant(
        "reservation that another message can end", f"{SCRIPTS}/unreserve.lua",
        "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end", "",
        [f"{ON_STORES}/test_store_contract.py", "-k", "Redis"],
    ),
    # What is read quickly is what the strict reader makes of it.
    Mutant(
        "record whose task id has another length than it says",
        "django_tasklock/stores/redis/record_heads.py",
        "if value[start - 1] != len(text) or value[end - 1 : end] != b\"\\x94\":",
        "if value[end - 1 : end] != b\"\\x94\":",
        ["tests/unit/stores/test_record_heads.py"],
    ),
    Mutant(
        "record of a time that no clock shows", "django_tasklock/stores/redis/record_heads.py",
        "if not 0 <= at <= MAX_TIMESTAMP_SECONDS:", "if False:",
        ["tests/unit/stores/test_record_heads.py"],
    ),
    Mutant(
        "record in a frame of another length", "django_tasklock/stores/redis/record_heads.py",
        " or value[2:FRAME_BYTES] != _frame(size):", ":",
        ["tests/unit/stores/test_record_heads.py"],
    ),
    Mutant(
        "owner that ended after its lock was read", "django_tasklock/stores/redis/searching.py",
        "return bool(self._described([info.name]))", "return True",
        ["tests/integration/operators/test_doctor.py"],
    ),
    # What a lease knows by itself.
    Mutant(
        "lease that is held after its deadline", f"{ENGINE}/lease_state.py",
        "if clock.now() < self._deadline and (", "if True or (",
        [f"{ON_ENGINE}/test_lease.py", f"{ON_ENGINE}/test_renewal.py"],
        chaos=True,
    ),
    Mutant(
        "lease that a forked child holds too", f"{ENGINE}/lease_state.py",
        "if self._state != HELD or self._process != process:\n            return False\n        if",
        "if self._state != HELD:\n            return False\n        if",
        [f"{ON_ENGINE}/test_lease.py", f"{ON_ENGINE}/test_renewal.py"],
    ),
    Mutant(
        "no renewal", f"{ENGINE}/store_renewal.py",
        "return lease.renew and lease._extending([False])", "return False",
        [f"{ON_ENGINE}/test_renewal.py"],
    ),
    Mutant(
        "renewal that forgets held leases as well", f"{ENGINE}/store_renewal.py",
        "* TOGETHER_SHARE and not counts(heap[0]):", "* TOGETHER_SHARE:",
        [f"{ON_ENGINE}/test_renewal.py"],
    ),
    Mutant(
        "renewal that does not see that the lease is gone", f"{ENGINE}/store_renewal.py",
        "            else:\n                _lost(lease)",
        "            else:\n                self._again(lease, left * RENEWAL_SHARE)",
        [f"{ON_ENGINE}/test_renewal.py"],
    ),
    Mutant(
        "renewal that gives a lease up at the first failed call", f"{ENGINE}/store_renewal.py",
        "            elif held is None:", "            elif held is None and False:",
        [f"{ON_ENGINE}/test_renewal.py"],
    ),
    Mutant(
        "plain cache that deletes when its lease is about to end",
        "django_tasklock/stores/cache.py",
        "if proof is not None and proof.at - clock.now() < min(",
        "if proof is not None and proof.at < min(",
        [f"{ON_STORES}/test_cache_store.py"],
    ),
    Mutant(
        "plain cache that keeps nothing and grants", "django_tasklock/stores/cache.py",
        "        if clock.now() < until:\n            raise InvalidLockConfig(",
        "        if False:\n            raise InvalidLockConfig(",
        [f"{ON_STORES}/test_cache_store.py"],
    ),
    Mutant(
        "waiter that gives up without a last question", f"{ENGINE}/waiting.py",
        "                # The process was stopped for longer than the lease: ask once more.\n",
        """            if self._left() <= 0:
                late = waiter.leave()
                return (answer, asked) if late is None else (late, _since(late, asked))
""",
        [f"{ON_ENGINE}/test_waiting.py", "-k", "42"],
    ),
    Mutant(
        "release whose first write needs memory", f"{SCRIPTS}/release.lua",
        "redis.call('ZREM', KEYS[2], ARGV[2])\nlocal handed_over = false",
        "local handed_over = false",
        [f"{ON_STORES}/test_full_redis.py"],
    ),
    # What the guard compares in the database.
    Mutant(
        "claim without the fence compare", "django_tasklock/guards.py",
        """            rows = rows.filter(
                Q((f"{self.fence_field}__isnull", True)) | Q((f"{self.fence_field}__lt", fence))
            )
            changes[self.fence_field] = fence
        return rows, changes
""",
        """            changes[self.fence_field] = fence
        return rows, changes
""",
        ["tests/unit/test_guards.py"],
        chaos_tasks=True,
    ),
    Mutant(
        "finish without the fence compare", "django_tasklock/guards.py",
        "            ours &= Q((self.fence_field, fence))\n", "            pass\n",
        ["tests/unit/test_guards.py"],
        chaos_tasks=True,
    ),
    Mutant(
        "finish whatever the status", "django_tasklock/guards.py",
        "return self.rows().filter(ours & Q((self.field, self.to))), {self.field: status}",
        "return self.rows().filter(ours), {self.field: status}",
        ["tests/unit/test_guards.py"],
    ),
    Mutant(
        "claim inside a transaction", "django_tasklock/row_updates.py",
        "if is_in_atomic(using):", "if False:",
        ["tests/unit/test_guards.py"],
    ),
    Mutant(
        "cut connection to the database that fails the run", "django_tasklock/row_updates.py",
        "            if not close_if_cut(using):\n                raise\n", "            raise\n",
        ["tests/integration/test_guard_connections.py"],
        chaos_tasks=True,
    ),
    Mutant(
        "lost reply of an UPDATE that counts as a refusal", "django_tasklock/row_updates.py",
        "return ours and rows.model._base_manager.using(using).filter(changed).exists()",
        "return False",
        ["tests/integration/test_guard_connections.py"],
    ),
    # What operators rely on.
    Mutant(
        "clear that is called safe though the holder is not known",
        f"{OPERATORS}/meaning.py",
        "    if alive is None:\n        return Holder.NOT_KNOWN",
        "    if alive is None:\n        return Holder.GONE",
        ["tests/integration/operators/test_meaning.py"],
    ),
    Mutant(
        "clear of a lock that changed hands since it was shown",
        f"{OPERATORS}/clearing.py",
        "if holder is not None and each.is_of(holder)",
        "if holder is not None",
        ["tests/integration/operators/test_clear_many.py"],
    ),
)  # fmt: skip
