"""The mutants: what is taken out, where, and the tests that must notice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MUTANTS", "Mutant"]

SCRIPTS = "django_tasklock/stores/lua"
ENGINE = "django_tasklock/_engine"
CELERY = "django_tasklock/celery"
OPERATORS = "django_tasklock/operators"
ON_STORES = "tests/integration/stores"
ON_ENGINE = "tests/integration/engine"
ON_CELERY = "tests/integration/celery"
HARD_CASES = "tests/acceptance/hard_cases"


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    ``name`` says what is missing. In ``file``, ``old`` occurs once and becomes ``new``. ``tests``
    are pytest's arguments: at least one of these tests must fail. ``chaos``: the checker of
    ``make chaos`` must find a violation as well, in a run of `CHAOS_SECONDS`.
    """

    name: str
    file: str
    old: str
    new: str
    tests: Sequence[str]
    chaos: bool = False
    chaos_tasks: bool = False
    """a short run of `tests.chaos_tasks` must find a violation as well: `tests.mutants.on_tasks`"""


MUTANTS: Sequence[Mutant] = (
    # What the scripts on the server protect.
    Mutant(
        "release without its token compare", f"{SCRIPTS}/release.lua",
        "if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then", "if false then",
        [f"{ON_STORES}/test_store_contract.py", "-k", "Redis"],
    ),
    Mutant(
        "extension without its token compare", f"{SCRIPTS}/extend.lua",
        "if value_of_lock(KEYS[i]) == ARGV[at + 1] then", "if value_of_lock(KEYS[i]) then",
        [f"{ON_STORES}/test_store_contract.py", "-k", "Redis"],
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
        "acquire past the queue of a lease that expired", f"{SCRIPTS}/acquire.lua",
        "if redis.call('EXISTS', queue) == 1 then", "if false then",
        [f"{ON_STORES}/test_handover.py", f"{ON_STORES}/test_queue_order.py",
         f"{ON_ENGINE}/test_waiting.py"],
    ),
    Mutant(
        "queue that is served last first", f"{SCRIPTS}/notify_waiters.lua",
        "local members = redis.call('ZRANGE', queue, from + #found, from + most - 1)",
        "local members = redis.call('ZREVRANGE', queue, from + #found, from + most - 1)",
        [f"{ON_ENGINE}/test_waiting.py", f"{ON_ENGINE}/test_waiters.py"],
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
    ),
    Mutant(
        "fence that follows the clock back", f"{SCRIPTS}/next_fence.lua",
        "if last >= fence then fence = last + 1 end", "",
        [f"{ON_STORES}/test_outage.py", f"{ON_ENGINE}/test_service.py"],
    ),
    Mutant(
        "reservation that another message can end", f"{SCRIPTS}/unreserve.lua",
        "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end", "",
        [f"{ON_STORES}/test_store_contract.py", "-k", "Redis"],
    ),
    # What a lease knows by itself.
    Mutant(
        "lease that is held after its deadline", f"{ENGINE}/lease_state.py",
        "if clock.now() < self._deadline and (", "if True or (",
        [f"{ON_ENGINE}/test_lease.py", f"{ON_ENGINE}/test_renewal.py"],
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
    # What the guard compares in the database.
    Mutant(
        "claim without the fence compare", "django_tasklock/guards.py",
        """            rows = rows.filter(
                Q((f"{self.fence_field}__isnull", True)) | Q((f"{self.fence_field}__lt", fence))
            )
            changes[self.fence_field] = fence
        return self._update(rows, changes, Q(pk=pk))

    def claim_alone""",
        """            changes[self.fence_field] = fence
        return self._update(rows, changes, Q(pk=pk))

    def claim_alone""",
        ["tests/unit/test_guards.py"],
    ),
    Mutant(
        "finish without the fence compare", "django_tasklock/guards.py",
        "            ours &= Q((self.fence_field, fence))\n", "            pass\n",
        ["tests/unit/test_guards.py"],
        chaos_tasks=True,
    ),
    Mutant(
        "finish whatever the status", "django_tasklock/guards.py",
        "rows = self.rows().filter(ours & Q((self.field, self.to)))",
        "rows = self.rows().filter(ours)",
        ["tests/unit/test_guards.py"],
    ),
    Mutant(
        "claim inside a transaction", "django_tasklock/guards.py",
        "if is_in_atomic(rows.db):", "if False:",
        ["tests/unit/test_guards.py"],
    ),
    Mutant(
        "cut connection to the database that fails the run", "django_tasklock/guards.py",
        "            if not close_if_cut(rows.db):\n                raise\n", "            raise\n",
        ["tests/integration/test_guard_connections.py"],
        chaos_tasks=True,
    ),
    Mutant(
        "lost reply of an UPDATE that counts as a refusal", "django_tasklock/guards.py",
        "return ours is not None and self.rows().filter(ours & changed).exists()", "return False",
        ["tests/integration/test_guard_connections.py"],
    ),
    # What a task does with its message.
    Mutant(
        "redelivery that is not judged", f"{CELERY}/delivery.py",
        "        if not self.redelivered:\n            return Verdict(\"run\")\n        text",
        "        if True:\n            return Verdict(\"run\")\n        text",
        [f"{ON_CELERY}/test_redelivery.py", f"{ON_CELERY}/test_outcomes.py"],
        chaos_tasks=True,
    ),
    Mutant(
        "redelivery that does not look for a stored result", f"{CELERY}/delivery.py",
        "if state == states.SUCCESS:", "if False:",
        [f"{ON_CELERY}/test_redelivery.py"],
    ),
    Mutant(
        "success that is forgotten when Celery's STARTED overwrites it",
        f"{CELERY}/stored_result.py",
        "if before is not None and meta[\"status\"] == states.STARTED:", "if False:",
        [f"{ON_CELERY}/test_overwritten_results.py"],
    ),
    Mutant(
        "success that stays overwritten", f"{CELERY}/locked_run.py",
        "            put_back(task, delivery.stored_before)\n", "",
        [f"{ON_CELERY}/test_overwritten_results.py"],
    ),
    Mutant(
        "redelivery that is skipped while its own run goes on", f"{CELERY}/run.py",
        "if delivery.queued and (delivery.is_by(holder) or self._may_have_begun(holder)):",
        "if False:",
        [f"{HARD_CASES}/test_redelivery.py",
         f"{ON_CELERY}/test_cooling_tasks.py"],
    ),
    Mutant(
        "attempts without a limit", f"{CELERY}/delivery.py",
        "if verdict.starts >= self.task.lock_max_attempts:", "if False:",
        ["tests/acceptance/test_attempts.py"],
        chaos_tasks=True,
    ),
    Mutant(
        "orderly shutdown that counts as a death", f"{CELERY}/delivery.py",
        "return self._start_note(self._starts - 1) if self._starts else None", "return None",
        ["tests/acceptance/test_attempts.py", f"{HARD_CASES}/test_attempts.py"],
    ),
    Mutant(
        "dead child that nobody notices", f"{CELERY}/children.py",
        "        with suppress(KeyError):\n            while True:\n"
        "                child.runs.pop().died()", "        child.runs.clear()",
        [f"{ON_CELERY}/test_children.py"],
    ),
    Mutant(
        "outage that counts as held", f"{CELERY}/run.py",
        "        except StoreUnavailable as error:\n            return self._outage(error)\n"
        "        return self._run_locked(won) if isinstance(won, Lease) else self._conflict(won)",
        "        except StoreUnavailable:\n"
        '            return self.locked.skip("already_processing", None)\n'
        "        return self._run_locked(won) if isinstance(won, Lease) else self._conflict(won)",
        [f"{ON_CELERY}/test_locked_task.py", f"{ON_CELERY}/test_outcomes.py"],
    ),
    Mutant(
        "killed child whose message does not come back", f"{CELERY}/task.py",
        "    reject_on_worker_lost = True\n", "    reject_on_worker_lost = None\n",
        [f"{HARD_CASES}/test_killed_processes.py"],
        chaos_tasks=True,
    ),
    Mutant(
        "run that goes on though its lease is lost", f"{CELERY}/locked_run.py",
        "            lease.assert_held()\n        return result",
        "            pass\n        return result",
        [f"{ON_CELERY}/test_locked_task.py"],
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
        "if holder is not None and is_seen(holder, each.token, each.digest)",
        "if holder is not None",
        ["tests/integration/operators/test_clear_many.py"],
    ),
)  # fmt: skip
