"""Mutants of what a task does with its message."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutants.mutant import Mutant

__all__ = ["OF_TASKS"]

CELERY = "django_tasklock/celery"
ON_CELERY = "tests/integration/celery"
LATE_CLAIMS = f"{ON_CELERY}/test_late_claims.py"
ATTEMPTS = "tests/acceptance/test_attempts.py"
ENGINE = "django_tasklock/_engine"
HARD_CASES = "tests/acceptance/hard_cases"

OF_TASKS: Sequence[Mutant] = (
    Mutant(
        "redelivery that is not judged", f"{CELERY}/delivery.py",
        "        if not (self.redelivered or is_old(self.task.app, self.ours)):\n"
        "            return _RUN\n        text",
        "        if True:\n            return _RUN\n        text",
        [f"{ON_CELERY}/test_redelivery.py", f"{ON_CELERY}/test_outcomes.py"],
        chaos_tasks=True,
    ),
    Mutant(
        "retry that the broker does not take", f"{CELERY}/task.py",
        "body.survives and isinstance(error, not_taken(self)):", "False:",
        [f"{ON_CELERY}/test_unsent_successors.py"],
    ),
    Mutant(
        "exit that writes over the end of a run", f"{CELERY}/exiting.py",
        "delivery.take_start_back()",
        "delivery.task.locks.store.set_note(delivery.note_of_interruption())",
        [f"{ON_CELERY}/test_exiting.py"],
    ),
    Mutant(
        "time limit in the pause of a requeue", f"{CELERY}/requeue.py",
        "    with suppress(SoftTimeLimitExceeded):\n        time.sleep(seconds)",
        "    time.sleep(seconds)",
        [f"{ON_CELERY}/test_limited_requeues.py"],
    ),
    Mutant(
        "rejecting what a queue counts", f"{CELERY}/received.py",
        "bool(self.task.acks_late) and self.deliveries < self.task.lock_max_attempts",
        "bool(self.task.acks_late)",
        [f"{ON_CELERY}/test_limited_requeues.py"],
    ),
    Mutant(
        "headers of the broker in what is sent anew", f"{CELERY}/requeue.py",
        "if name not in BROKERS_OWN", "if name",
        [f"{ON_CELERY}/test_limited_requeues.py"],
    ),
    Mutant(
        "run that is the parent of its own message", f"{CELERY}/requeue.py",
        ', "parent_id": request.parent_id}', "}",
        [f"{ON_CELERY}/test_limited_requeues.py"],
    ),
    Mutant(
        "half a second to a broker that counts whole ones", f"{CELERY}/sending.py",
        "math.ceil(wait)", "wait",
        ["tests/acceptance/hard_cases/test_requeues.py"],
    ),
    Mutant(
        "time limit while a broker is silent", f"{CELERY}/requeue.py",
        "(task.OperationalError, SoftTimeLimitExceeded, ", "(task.OperationalError, ",
        [f"{ON_CELERY}/test_limited_requeues.py"],
    ),
    Mutant(
        "requeue with what the body has made of the chain", f"{CELERY}/requeue.py",
        "                **delivery.followed_by,\n", "",
        [f"{ON_CELERY}/test_own_request.py"],
    ),
    Mutant(
        "redelivery beside the retry of its first run", f"{CELERY}/delivery.py",
        "if self._retry_has_started():", "if False:",
        [f"{ON_CELERY}/test_unsent_successors.py"],
    ),
    Mutant(
        "retry of a run whose redelivery has done the work", f"{CELERY}/locked_run.py",
        "                self._earlier_retry.drop(self.write)\n", "                pass\n",
        [f"{ON_CELERY}/test_unsent_successors.py"],
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
        "            restore_success(task, delivery.stored_before)\n", "",
        [f"{ON_CELERY}/test_overwritten_results.py"],
    ),
    Mutant(
        "dropped part of a chord that does not count", f"{CELERY}/locked_run.py",
        "            count_part(task)\n", "",
        [f"{ON_CELERY}/test_chord_parts.py"],
    ),
    Mutant(
        "redelivery that is skipped while its own run goes on", f"{CELERY}/run.py",
        "if delivery.queued and (delivery.is_by(holder) or self._may_have_begun(holder)):",
        "if False:",
        [f"{HARD_CASES}/test_redelivery.py",
         f"{ON_CELERY}/test_cooling_tasks.py"],
        chaos_tasks=True,
    ),
    Mutant(
        "attempts without a limit", f"{CELERY}/delivery.py",
        "if verdict.starts >= self.task.lock_max_attempts:", "if False:",
        ["tests/acceptance/test_attempts.py"],
        chaos_tasks=True,
    ),
    Mutant(
        "orderly shutdown that counts as a death", f"{CELERY}/received.py",
        "return self._start_note(self._starts - 1) if self._starts else None", "return None",
        ["tests/acceptance/test_attempts.py", f"{HARD_CASES}/test_attempts.py"],
        chaos_tasks=True,
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
        chaos_tasks=True,
    ),
    Mutant(
        "original that runs after its redelivery", f"{CELERY}/received.py",
        "if kept and not needed and (self.sent is not None or is_uuid(self.id)):", "if False:",
        [f"{ON_CELERY}/test_late_originals.py"],
    ),
    Mutant(
        "follow-up that is dropped because of its own redelivery", f"{CELERY}/taking.py",
        "needed=kept and is_relied_on(delivery, self.name)", "needed=False",
        [f"{ON_CELERY}/test_late_originals.py"],
    ),
    Mutant(
        "note that is written over by another start", "django_tasklock/stores/lua/acquire.lua",
        "ARGV[8], 'NX')", "ARGV[8])",
        [f"{ON_CELERY}/test_late_originals.py"],
    ),
    Mutant(
        "late run that sends a successor", f"{CELERY}/task.py",
        "            body.assert_in_time(getattr(self.request, \"tasklock_lease\", None))\n",
        "            pass\n",
        [f"{ON_CELERY}/test_late_successors.py"],
    ),
    Mutant(
        "follow-up that relies on a run that has failed", f"{CELERY}/locked_run.py",
        "                self.followup.give_up()\n", "                pass\n",
        [f"{ON_CELERY}/test_coalesce.py"],
    ),
    Mutant(
        "reservation of a call that was not sent", f"{CELERY}/unique.py",
        "            reservation.give_up_soon(ttl)", "            del ttl",
        [f"{ON_CELERY}/test_unique_ends.py"],
    ),
    Mutant(
        "killed child whose message does not come back", f"{CELERY}/task.py",
        "    reject_on_worker_lost = True\n", "    reject_on_worker_lost = None\n",
        [f"{HARD_CASES}/test_killed_processes.py"],
        chaos_tasks=True,
    ),
    Mutant(
        "project's own class of requests in the place of ours", f"{CELERY}/request.py",
        "(LockedRequest, given), {", "(given,), {",
        ["tests/unit/celery/test_task_requests.py", f"{HARD_CASES}/test_own_requests.py"],
    ),
    Mutant(
        "run that goes on though its lease is lost", f"{CELERY}/locked_run.py",
        "            lease.assert_held()\n        return result",
        "            pass\n        return result",
        [f"{ON_CELERY}/test_locked_task.py"],
    ),
    Mutant(
        "late run that acknowledges its redelivery too", f"{CELERY}/late.py",
        "if holder is not None and delivery.survives and delivery.is_by(holder):",
        "if False:",
        [f"{HARD_CASES}/test_leases.py", "-k", "loser_does_not"],
    ),
    Mutant(
        "refused claim of a late run that counts as done", f"{CELERY}/locked_run.py",
        "            self.body.assert_in_time(lease)\n            return", "            return",
        [LATE_CLAIMS],
    ),
    Mutant(
        "late run that counts the run of its redelivery as a death", f"{CELERY}/body.py",
        "lease is not None and self.survives and not lease._is_detached()", "False",
        [LATE_CLAIMS],
    ),
    Mutant(
        "late run that leaves the lease which the store has for longer", f"{CELERY}/late.py",
        "            task.clear_lost(lease)\n", "",
        [LATE_CLAIMS, "-k", "store_has"],
    ),
    Mutant(
        "late run that fails because the store is silent", f"{CELERY}/late.py",
        "except StoreUnavailable:\n            return None",
        "except ZeroDivisionError:\n            return None",
        [LATE_CLAIMS, "-k", "silent"],
    ),
    Mutant(
        "late result that acknowledges its redelivery too",
        f"{CELERY}/locked_run.py",
        "            self._late.leave_to_redelivery(lease)\n            raise late",
        "            raise late",
        [LATE_CLAIMS, "-k", "while_the_redelivery_works"],
    ),
    Mutant(
        "late release that acknowledges its redelivery too", f"{CELERY}/locked_run.py",
        "            self._late.leave_to_redelivery(lease)\n            lease.assert_held()",
        "            lease.assert_held()",
        [LATE_CLAIMS, "-k", "release_comes"],
    ),
    Mutant(
        "acquire without an answer that counts as a start", f"{ENGINE}/abandoned.py",
        "        store.unreserve(note.key, note.text)", "        pass",
        [ATTEMPTS, "-k", "TestTheStoreIsSilent"],
    ),
    Mutant(
        "note of the end that is lost with its release", f"{ENGINE}/abandoned.py",
        "        store.set_note(note)", "        pass",
        [ATTEMPTS, "-k", "TestTheStoreIsSilent"],
    ),
    Mutant(
        "late run that reserves the queue when it is interrupted", f"{CELERY}/unique.py",
        "if not (lease.held or lease._is_detached()):", "if False:",
        [LATE_CLAIMS],
    ),
)  # fmt: skip
