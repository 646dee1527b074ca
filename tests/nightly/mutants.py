"""``python -m tests.nightly.mutants [NAME...]``: take the protections out, one at a time.

A mutant is a copy of the package in which one protection of a guarantee is missing, such as the
compare of a token. The tests that hold this guarantee must fail. If they pass, the mutant has
survived, and shows a hole in the tests. `tests.top.test_mutants` looks whether the list is right.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

__all__ = ["MUTANTS", "PACKAGE", "ROOT", "Mutant", "main"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "django_tasklock"
COPIED = (PACKAGE, "tests", "example_project", "pyproject.toml")
SECONDS = 300.0
"""how long the tests of one mutant may take; one that hangs is noticed too"""
AT_ONCE = 3
"""Their tests mostly wait."""


class Mutant(NamedTuple):
    """In ``file`` of the package, ``old`` occurs once and becomes ``new``. A test must fail."""

    guarantee: str
    """a row of the table in docs/explanation/guarantees.md, or a hard case, in a few words"""
    file: str
    old: str
    new: str
    tests: str
    """a file of tests, and what to choose there: pytest's ``-k``, with whole names of tests"""
    chosen: str


CONTRACT = "stores/test_store_contract.py"
DATABASE = "stores/database/store.py"
LEASE = "engine/test_lease.py"
RENEWAL = "engine/test_renewal.py"
WAITING = "engine/test_waiting.py"
SLOTS = "engine/test_slots.py"
TAKEOVER = "engine/test_takeover.py"
QUEUE = "stores/test_queue_order.py"
WALKS = "stores/test_scripts.py"
OUTAGE = "stores/test_outage.py"
GUARDS = "top/test_guards.py"
REDELIVERY = "celery_tasks/test_redelivery.py"
DEATHS = "celery_tasks/test_deaths.py"
OUTAGES = "celery_tasks/test_outages.py"
RETRIES = "celery_tasks/test_unique_retries.py"
AUTORETRY = "celery_tasks/test_autoretry.py"
GONE = "celery_tasks/test_gone_messages.py"
REQUESTS = "celery_tasks/test_task_requests.py"
COALESCE = "celery_tasks/test_coalesce.py"
REQUEUES = "celery_tasks/test_requeues.py"
TASKS = "celery_tasks/test_locked_task.py"
GUARDED = "celery_tasks/test_guarded_task.py"
ATTEMPTS = "celery_tasks/test_attempts.py"
UNIQUE = "celery_tasks/test_unique.py"
HANDED = "celery_tasks/test_handed_lease.py"
HARD = "hard_cases"
LUA = "stores/lua"
QUORUM = "stores/quorum"
QUORUMS = "stores/test_quorum_store.py"
CLUSTER = "stores/cluster.py"
CLUSTERS = "stores/test_cluster_store.py"

# fmt: off
MUTANTS = [Mutant(*each) for each in (
    ("one lease holds a lock", f"{LUA}/acquire.lua",
     "'PX', ttl, 'NX') then", "'PX', ttl) then",
     CONTRACT, "redis-pickle and test_a_lock_is_granted_to_one_holder"),
    ("one lease holds a lock, also of all or none", f"{LUA}/put.lua",
     "    made = made and (expected or change.same)\n", "",
     CONTRACT, "redis-pickle and test_of_several_locks_none_is_granted_if_one_is_held"),
    ("asking again after a lost reply", f"{LUA}/acquire.lua",
     "elseif string.find(held[i], token, 1, true) then", "elseif false then",
     CONTRACT, "redis-pickle and test_asking_again_with_the_same_token_is_granted_again"),

    ("over no later than on the server: from before the call", "_engine/acquiring.py",
     "keeper.granted(own, since + own.ttl)", "keeper.granted(own, clock.now() + own.ttl)",
     LEASE, "test_a_lease_counts_from_before_the_call"),
    ("over by the holder's own clock", "_engine/lease.py",
     "if clock.now() < own.until and (", "if True or (",
     LEASE, "test_lease_is_over_by_our_clock_whatever_the_server_says"),
    ("a forked child holds nothing", "_engine/lease.py",
     "if own.state != HELD or self._keeper.inherited:", "if own.state != HELD:",
     LEASE, "test_child_owns_nothing_of_its_parents"),
    ("a forked child uses nothing of its parent's", "_values/processes.py",
     "from os import getpid\n", "getpid = int\n",
     "stores/test_listener.py", "test_a_child_listens_on_a_connection_of_its_own"),
    ("each block ends its own lease", "_engine/lock.py",
     "any(map(block.is_beside, self._blocks))", "False",
     "engine/test_mistakes.py",
     "test_one_object_for_two_blocks_that_overlap_in_a_thread_is_an_error"),
    ("a holder on another host is not dead", "_values/owner.py",
     "== (here[\"host\"], here", "== (self.host, here", TAKEOVER, "test_who_is_elsewhere_keeps_it"),
    ("a holder in another time namespace is not dead", "_values/owner.py",
     "here[\"timens\"])", "self.timens)", TAKEOVER, "test_who_is_elsewhere_keeps_it"),
    ("a holder whose start was rounded is not dead", "_values/owner.py",
     "SAME_START_TICKS = 2", "SAME_START_TICKS = 0",
     TAKEOVER, "test_starts_that_differ_by_a_tick_are_one_start"),
    ("a holder of before a checkpoint is not dead", "_values/owner.py",
     "        _read_this_process()\n        if restored", "        if restored",
     TAKEOVER, "test_what_was_recorded_before_a_checkpoint_proves_no_death"),
    ("a lease is renewed", "_engine/keeper.py",
     "        if any(own.due <= now for own in due):\n", "        if False:\n",
     RENEWAL, "test_lease_of_an_ended_thread_is_renewed"),
    ("a renewal under way does not write a released lease again", "_engine/lease.py",
     "own.is_next(own.begin_call(), own.until)\n            released", "pass\n            released",
     RENEWAL, "test_a_renewal_that_a_release_has_overtaken_writes_nothing"),
    ("what is detached meanwhile is not extended", "_engine/keeper.py",
     "if own.renew and (late", "if (late",
     RENEWAL, "test_a_lease_that_is_detached_while_others_are_extended_keeps_its_end"),
    ("an interrupted extension ends no renewal", "_engine/keeper.py",
     "(late or own.is_next(call, 0))", "own.is_next(call, 0)",
     "engine/test_interrupts.py", "test_an_interrupted_extension_ends_no_renewal"),
    ("over no later than on the server: an extension without an answer", "_engine/keeper.py",
     "ends = clock.now() + ttl\n", "ends = math.inf\n",
     RENEWAL, "test_lease_that_may_be_shorter_now_is_renewed_in_time"),
    ("an interruption between two instructions leaves no lock", "_engine/keeper.py",
     "                self.give_up(own)\n", "                pass\n",
     "engine/test_interrupts.py", "test_of_a_block_that_has_the_lease"),
    ("an acquire without an answer leaves no lock", "_engine/keeper.py",
     "held = [store.release(name, own.token) for name in names]", "held = [False]",
     "engine/test_no_answer.py", "test_each_call_that_gets_no_answer and block-unanswered"),
    ("many acquires without an answer leave no lock", "_engine/keeper.py",
     "if noted or own.token in found:", "if False:",
     "engine/test_no_answer.py", "test_what_an_outage_has_left_is_looked_for_together"),
    ("of several leases one that was lost is no success", "_engine/acquiring.py",
     "            if not lost:\n", "            if True:\n",
     "engine/test_several.py", "test_lease_that_is_lost_meanwhile_is_a_refusal"),

    ("release changes that very lease", f"{LUA}/release.lua",
     "if not held or not string.find(held, ARGV[1], 1, true) then", "if not held then",
     CONTRACT, "redis-pickle and test_release_needs_the_token"),
    ("extend changes that very lease", f"{LUA}/renew.lua",
     "if held and string.find(held, ARGV[at + 1], 1, true) then", "if held then",
     CONTRACT, "redis-pickle and test_extend_needs_the_token"),
    ("clear with a token changes that very lease", f"{LUA}/put.lua",
     "expected = has(there, change.proof) and has(there, change.version)", "expected = true",
     CONTRACT, "redis-pickle and test_held_expects_that_very_lease"),
    ("of two adopters one is made, on Redis", f"{LUA}/put.lua",
     "has(there, change.proof) and has(there, change.version)", "has(there, change.proof)",
     CONTRACT, "redis-pickle and test_held_may_expect_a_version_of_the_lease"),
    ("other code's value is cleared as it was shown", f"{LUA}/put.lua",
     "expected = redis.sha1hex(string.sub(there, 1, MAX_VALUE_BYTES)) == change.proof",
     "expected = true",
     CONTRACT, "redis-pickle and test_held_expects_that_very_lease"),
    ("an operator clears the lease that was shown", "operators/clearing.py",
     "info.name, info.token, info.digest", "info.name, None, None",
     "cli/test_clear.py", "test_each_lease_has_an_outcome_of_its_own"),
    ("a change is made to the very lease that it expects", "stores/records.py",
     'return there.record["token"] == expect.token and (', "return (",
     CONTRACT, "memory and test_release_needs_the_token"),
    ("of two adopters one is made", "stores/records.py",
     'expect.version in (None, there.record.get("version"))', "True",
     CONTRACT, "memory and test_of_many_that_adopt_at_once_one_does"),
    ("a lease is put only where nothing is", "stores/records.py",
     "if expect == ANY or is_there(", "if expect in (FREE, ANY) or is_there(",
     CONTRACT, "memory and test_a_lock_is_granted_to_one_holder"),
    ("a lease that is over is not brought back", "stores/records.py",
     "return expect in (FREE, ANY)", "return True",
     CONTRACT, "memory and test_extend_does_not_bring_a_lease_back"),
    ("a lease keeps its fence when its record is replaced", "stores/records.py",
     "not (isinstance(expect, Held) or is_there(change, there)):", "not is_there(change, there):",
     CONTRACT, "memory and test_held_may_expect_a_version_of_the_lease"),
    ("other code's value is cleared as it was shown, outside of Redis", "stores/records.py",
     "isinstance(expect, Foreign) and there.digest == expect.digest",
     "isinstance(expect, Foreign)",
     "stores/test_database_store.py", "sqlite and test_a_row_that_somebody_else_wrote_is_a_lock"),
    ("a lease that is held to its block's end is not lost, on a cache", "stores/cache.py",
     "return made or near", "return made",
     "stores/test_cache_store.py",
     "test_a_block_that_ends_just_before_its_lease_has_lost_nothing"),
    ("a lease that is about to end is left to expire, on a cache", "stores/cache.py",
     "lease is None or entry is None or self._lasts(entry)", "True",
     "stores/test_cache_store.py",
     "test_a_lease_that_is_about_to_end_is_left_to_expire"),
    ("a lease ends by the leader's clock, in ZooKeeper", "stores/zookeeper/nodes.py",
     "lasts + (stat.mtime + 1 - moment) / 1000", "(stat.mtime + 1 - moment) / 1000",
     "stores/test_zookeeper_store.py", "test_a_lease_ends_by_the_leaders_clock"),
    ("what arrives late changes nothing of the next lease, in ZooKeeper",
     "stores/zookeeper/nodes.py",
     "child = [] if node.child is None else", 'child = [] if verb != "delete" else',
     "stores/test_zookeeper_store.py",
     "test_57_what_arrives_late_changes_nothing_of_the_next_lease"),
    ("a row is written if it is as it was read, in a database", DATABASE,
     "bool(connection.run(sql, parameters).rowcount)", "bool(connection.run(sql, parameters))",
     "stores/test_database_store.py",
     "sqlite and test_what_has_changed_since_it_was_read_is_read_anew"),
    ("a lock that has to be free stays free until the commit, in a database", DATABASE,
     "for row in sorted(rows))", "for row in sorted(rows) if row.expires)",
     "stores/test_database_store.py",
     "test_nothing_is_put_while_a_lock_is_held_that_has_to_be_free"),
    ("several changes are one transaction, in a database", DATABASE,
     "    connection.begin()\n", "",
     "stores/test_database_connections.py",
     "test_several_changes_that_were_cut_off_are_all_made_or_none"),
    ("what is written after its token was given back changes nothing, in a database", DATABASE,
     "new_fence if there is None else row.fence", "row.fence",
     "stores/test_database_store.py",
     "test_what_is_written_after_its_token_was_given_back_changes_nothing"),
    ("fences grow though the clock steps back, in a database", DATABASE,
     "max(now, row.fence + 1)", "now",
     "stores/test_database_store.py",
     "sqlite and test_a_fence_grows_though_the_clock_was_set_back"),

    ("fences grow though the clock steps back", f"{LUA}/lease.lua",
     "if last >= tonumber(fence) then fence = string.format('%.0f', last + 1) end", "",
     OUTAGE, "test_fences_grow_though_the_servers_clock_steps_back"),

    ("waiters are served in order", f"{LUA}/hand_over.lua",
     "members = redis.call('ZRANGE',", "members = redis.call('ZREVRANGE',",
     WAITING, "test_waiters_are_served_in_the_order_in_which_they_came"),
    ("waiters are served in order, in memory", "stores/memory.py",
     "next(iter(self.waiting_for(name))", "next(reversed(self.waiting_for(name))",
     CONTRACT, "memory and test_a_release_hands_the_lock_over_in_order"),
    ("a newcomer does not overtake", f"{LUA}/acquire.lua",
     "local waited = redis.call('EXISTS', queue) == 1", "local waited = false",
     WALKS, "test_scripts_take_the_steps_of_the_model"),
    ("a waiter that asks again keeps its position", f"{LUA}/join_queue.lua",
     "redis.call('ZADD', queue, 'NX', number, me)",
     "redis.call('ZADD', queue, redis.call('HINCRBY', fences, ' ', 1), me)",
     QUEUE, "test_a_waiter_that_asks_again_keeps_its_position"),

    ("the lock goes to a waiter that listens", f"{LUA}/hand_over.lua",
     "elseif permits and heard[2 * i] > 0 then", "elseif permits then",
     WALKS, "test_scripts_take_the_steps_of_the_model"),
    ("who leaves with the lock it was handed has it", f"{LUA}/leave.lua",
     "if held and string.find(held, ARGV[1], 1, true) then", "if false then",
     CONTRACT,
     "redis-pickle and test_a_waiter_that_leaves_after_the_hand_over_gets_the_grant"),
    ("case 58: a lease is counted from no moment after its hand-over", "stores/redis/waiter.py",
     "            self.leave()\n            self._number = number\n",
     "            if grant := self.leave():\n                return grant\n",
     "stores/test_listener.py",
     "test_a_lock_whose_hand_over_was_not_heard_is_granted_anew"),
    ("a hand-over that comes late grants nothing", "stores/redis/waiter.py",
     "None if (grant.fence or 0) <= self._last else", "None if False else",
     QUEUE, "test_message_for_an_earlier_question_grants_nothing"),
    ("a lease that is handed over late is granted anew", "_engine/waiting.py",
     "FRESH_SHARE = 0.5", "FRESH_SHARE = 1.0",
     WAITING, "test_a_waiter_that_slept_for_most_of_its_lease_has_a_whole_one"),
    ("what is handed to nobody is passed on", "stores/redis/waiter.py",
     "                self._store.release(grant.name, self._token)\n", "                pass\n",
     QUEUE, "test_what_is_handed_to_a_question_that_arrives_late_is_passed_on"),

    ("no lease is without a ttl", f"{LUA}/hand_over.lua",
     "redis.call('SET', key, value, 'PX', ttl)", "redis.call('SET', key, value)",
     WALKS, "test_scripts_take_the_steps_of_the_model"),
    ("the lock of a dead process is taken at once", "_engine/waiting.py",
     "            if not self._takes_over(answer):\n", "            if True:\n",
     TAKEOVER, "test_lock_of_a_killed_process_is_taken_at_once"),
    ("the run of a message gets no second permit", "_engine/acquiring.py",
     "if holder is not None and _is_other_run(holder, own):", "if False:",
     "engine/test_slots.py", "test_the_run_of_a_message_gets_no_second_permit"),
    ("a takeover ends the dead one's lease alone", "_engine/acquiring.py",
     "if now is not None and (now.token, now.owner) != (holder.token, holder.owner):",
     "if False:",
     TAKEOVER, "test_a_lease_that_goes_on_in_another_process_is_not_that_of_the_dead_one"),

    ("a message is skipped only while another id holds its lock", "celery/redelivery.py",
     "if message.queued and (message.is_by(holder) or lost):", "if False:",
     TASKS, "test_a_message_does_not_get_another_permit_beside_its_own_run"),
    ("a message that waits is sent before it is acknowledged", "celery/requeue.py",
     "            _publish(message, delay, ours)\n", "            pass\n",
     REQUEUES, "test_a_requeued_message_is_the_same_but_for_what_the_broker_has_counted"),
    ("a message that could not be sent is rejected", "celery/requeue.py",
     "            if message.rejectable:\n                tell(",
     "            if False:\n                tell(",
     REQUEUES, "test_a_message_that_the_broker_does_not_take_is_not_lost and acks_late"),
    ("what hides the arguments hides them in the queue", "celery/requeue.py",
     'SAID = ("argsrepr", "kwargsrepr", ', "SAID = (",
     REQUEUES, "test_a_requeued_message_is_the_same_but_for_what_the_broker_has_counted"),
    ("waiting uses up none of the task's retries", "celery/requeue.py",
     "**said, add_to_parent=False",
     "**said, add_to_parent=False, retries=(request.retries or 0) + 1",
     REQUEUES, "test_a_requeued_message_is_the_same_but_for_what_the_broker_has_counted"),

    ("a job whose child is killed is not lost", "celery/task.py",
     "    reject_on_worker_lost = True\n", "    reject_on_worker_lost = None\n",
     f"{HARD}/test_killed_processes.py",
     "test_01_a_job_whose_child_is_killed_runs_again_at_once_and_completes_once"),
    ("of a dead child only the lease that it held is cleared", "celery/request.py",
     "            return is_ours and not (holder.cooling or holder.detached)",
     "            return is_ours",
     REQUESTS, "test_of_a_dead_child_only_the_lease_that_it_held_is_cleared"),
    ("the one who adopted a lease from a dead child keeps it", "celery/request.py",
     "holder.token in tokens and holder.owner.pid == pid", "holder.token in tokens",
     REQUESTS, "test_of_a_dead_child_only_the_lease_that_it_held_is_cleared"),
    ("a death after the broker was lost is noticed", "celery/request.py",
     "        for pid in self._watched:\n            self._read(pid)\n", "",
     DEATHS, "test_a_loop_that_was_reset_still_reports_a_death"),
    ("a job that always kills its child is given up", "celery/redelivery.py",
     "if attempts.note.starts >= run.task.lock_max_attempts:", "if False:",
     ATTEMPTS, "test_a_message_that_kills_its_worker_each_time_is_given_up"),
    ("an orderly end is no death", "celery/note.py",
     "return self._started(self.counted - 1) if orderly else None", "return None",
     ATTEMPTS, "test_an_orderly_end_neither_counts_nor_hides_the_others"),
    ("a body that ends its process is a death", "celery/note.py",
     "orderly = isinstance(error, Exception) and", "orderly =",
     ATTEMPTS, "test_33_a_body_that_ends_its_process_itself_counts"),
    ("44: a shutdown takes its starts back", "celery/request.py",
     "            if is_shutting_down() or self._already_cancelled:", "            if False:",
     DEATHS, "test_a_run_that_ends_with_its_worker_does_not_count"),
    ("44: another delivery's start is not taken back", "celery/note.py",
     'if note.says == "started" and note.by == self.token:', 'if note.says == "started":',
     DEATHS, "test_another_deliverys_start_is_not_taken_back"),
    ("45: a death before the body counts", "celery/request.py",
     "elif (deaths := attempts.died()) >=", "elif (deaths := 0) >=",
     DEATHS, "test_a_message_whose_child_dies_each_time_is_given_up"),
    ("45: a death counts once", "celery/note.py",
     "        if note.by == self.token:\n", "        if False:\n",
     DEATHS, "test_a_message_whose_child_dies_each_time_is_given_up"),
    ("45: the row of a message that is given up has failed", "celery/request.py",
     "            elif self._given_up or open_too:", "            elif False:",
     DEATHS, "test_the_row_of_a_message_that_is_given_up_has_failed"),
    ("46: what a message that is over has reserved ends", "celery/request.py",
     "            self._end_reserved()\n        if self._given_up", "        if self._given_up",
     DEATHS, "test_when_a_message_is_over_what_it_reserved_ends"),
    ("46: a dropped redelivery leaves the retry what it reserved", "celery/redelivery.py",
     'in another message", CameBack)', 'in another message")',
     DEATHS, "test_a_redelivery_of_a_run_that_went_on_leaves_the_retry_what_it_reserved"),
    ("44: under gevent a shutdown takes all starts back", "celery/request.py",
     "        if waits:\n", "        if True:\n",
     DEATHS, "test_a_shutdown_of_a_gevent_worker_takes_all_starts_back"),
    ("46: a message that Celery retries is not over", "celery/request.py",
     "return most is not None and retries >= most", "return False",
     DEATHS, "test_a_message_that_celery_retries_for_its_dead_child_is_not_over"),
    ("50: a function names the lock of what the message has", "celery/call.py",
     "        if self.task.naming.calls_project:\n", "        if False:\n",
     DEATHS, "test_a_function_names_the_lock_of_what_the_message_has"),
    ("50: slots that do not depend on the call are those of now", "celery/call.py",
     "checked_slots(ours[SLOTS], SLOTS) if callable(now) else now", "ours[SLOTS]",
     DEATHS, "test_a_message_says_its_slots_only_if_they_depend_on_the_call"),
    ("51: a retry that may expire takes nothing over", "celery/unique.py",
     "takes_over = call.own and call.seconds_to_expiry() == math.inf", "takes_over = call.own",
     RETRIES, "test_a_retry_that_may_expire_takes_nothing_over"),
    ("44: SIGTERM to a child alone is a death", "celery/request.py",
     "            if is_shutting_down() or self._already_cancelled:", "            if True:",
     f"{HARD}/test_attempts.py",
     "redis and test_44_a_job_whose_child_gets_sigterm_each_time_is_given_up"),
    ("45: a child that dies of its arguments is seen", "celery/request.py",
     'if key not in ("args", "kwargs")}', "}", f"{HARD}/test_before_the_body.py",
     "test_45_a_message_that_kills_its_child_before_its_body_is_given_up and unpickling"),
    ("46: the row of a dead child has failed", "celery/request.py",
     "                self._fail_row(open_too=", "                _ = dict(open_too=",
     f"{HARD}/test_before_the_body.py",
     "test_46_the_row_of_a_killed_child_has_failed_where_its_message_does_not_come_again"),
    ("50: a message names its lock itself, in its run and in the main process", "celery/message.py",
     "named_by(self.task, self.ours) or ", "",
     DEATHS, "test_a_message_whose_lock_was_named_by_its_row_keeps_the_name"),
    ("a run without the lock keeps its row: claim", "guards.py",
     """(left & ~Q((f"{self.fence_field}__lt", 0)))""", "left",
     "celery_tasks/test_run_beside.py", "test_47_its_row_is_its_own_though_the_lock_is_free_again"),
    ("a killed run without the lock strands no row", "celery/row.py",
     "again = lease is not None and (", "again = False and (",
     "celery_tasks/test_run_beside.py", "test_47_its_row_is_its_redeliverys_after_its_death"),
    ("only its own redelivery takes that row", "celery/row.py",
     "(message.attempts.again or message.request.retries)", "True",
     "celery_tasks/test_run_beside.py", "test_47_its_row_is_its_own_though_the_lock_is_free_again"),
    ("a row of a run without the lock says whose it is", "guards.py",
     "self._update(self._with(pk, mark, self.to), ",
     'self._update(Q(pk=pk) & Q((self.field, self.to)) & Q((f"{self.fence_field}__lt", 0)), ',
     "celery_tasks/test_run_beside.py", "test_47_its_row_is_its_own_though_the_lock_is_free_again"),
    ("a fence of 0 keeps nobody out", "guards.py", '__lt", 0)', '__lte", 0)',
     GUARDS, "test_a_fence_that_no_run_has_written_keeps_nobody_out"),
    ("a claim without the lock knows its row again", "guards.py",
     "own = self._with(pk, mark, self.to) if fence else None", "own = None",
     "top/test_guard_connections.py",
     "test_a_row_is_claimed_and_left_though_the_connection_was_cut_before_or_in_the_update"),
    ("the row of a run without the lock fails with its message", "celery/request.py",
     "if guard.fence_field and guard.fail(row.pk, row.mark):", "if False:",
     "celery_tasks/test_run_beside.py",
     "test_47_its_row_is_failed_with_a_run_whose_message_does_not_come_again"),
    ("a guard's rows are all rows of its model", "guards.py",
     "QuerySet(model).filter(self._fresh())", "model._base_manager.filter(self._fresh())",
     GUARDS, "test_48_a_guard_whose_claim_is_not_one_update_is_refused_and_says_what_to_do"),
    ("a row of a run without the lock is not called lost", "operators/lost_work.py",
     "elif (fence or 0) < 0 and store.supports_fence:", "elif False:",
     "operators/test_lost_work.py",
     "test_47_a_row_of_a_run_without_the_lock_is_not_called_lost_nor_sent_again"),
    ("a guard over two tables is refused", "guards.py",
     "if owner._meta.concrete_model is not model._meta.concrete_model:", "if False:",
     GUARDS, "test_48_a_guard_whose_claim_is_not_one_update_is_refused_and_says_what_to_do"),
    ("a guard with a filter over a join is refused", "guards.py",
     "if tables_of(QuerySet(model).filter(self._fresh())) > 1:", "if False:",
     GUARDS, "test_48_a_guard_whose_claim_is_not_one_update_is_refused_and_says_what_to_do"),
    ("an outage of the database consumes no message", "celery/run.py",
     "except (StoreUnavailable, *AWAY) as error:", "except StoreUnavailable as error:",
     OUTAGES, "test_52_a_message_whose_row_is_out_of_reach_comes_back_and_runs_once"),
    ("a claim without the lock whose reply was lost is made again", "celery/row.py",
     "            message.attempts.again |= lease is None\n", "",
     OUTAGES, "test_52_a_claim_whose_reply_was_lost_is_made_again"),
    ("an outage of the database keeps the reservation", "celery/run.py",
     "            return self._work(lease, report=report)\n",
     ("            self.message.end_reserved()\n"
      "            return self._work(lease, report=report)\n"),
     OUTAGES, "test_52_a_message_whose_row_is_out_of_reach_comes_back_and_runs_once"),
    ("a call refused while the claim failed is not lost", "celery/row.py",
     "            if not claimed and message.reserved:", "            if False:",
     GUARDED, "test_a_call_that_was_refused_while_the_claim_failed_is_not_lost"),
    ("a claim taken back by an outage of the store leaves its row open", "celery/row.py",
     "        again |= isinstance(error, StoreUnavailable) and not self.begun\n", "",
     OUTAGES, "test_it_runs_once_and_leaves_nothing and guarded"),
    ("an error of the database in the body is the body's", "celery/run.py",
     "        if self.row.begun:\n            raise error  # It is the body's.\n", "",
     OUTAGES, "test_52_an_error_of_the_database_in_the_body_is_the_bodys"),
    ("51: a retry takes over the reservation", "celery/unique.py",
     "(takes_over or has_ended(task, other))", "has_ended(task, other)",
     RETRIES, "test_a_retry_takes_over_the_reservation_of_the_message_that_waits"),
    ("54: a message that has ended is no reason to refuse a call", "celery/unique.py",
     "(takes_over or has_ended(task, other))", "takes_over",
     GONE, "test_the_next_call_takes_the_place_of_a_message_that_has_ended"),
    ("51: a message leaves the job to the one that has its reservation", "celery/unique.py",
     "other not in (None, message.id)", "False",
     RETRIES, "test_a_retry_takes_over_the_reservation_of_the_message_that_waits"),
    ("54: a result of an id that may be used again is not believed", "celery/unique.py",
     " if _drawn(task_id) else None", "",
     GONE, "test_a_stored_result_that_may_be_of_another_message_is_not_believed"),
    ("51: a redelivery leaves its job to nobody", "celery/unique.py",
     " or message.attempts.again:", ":",
     RETRIES, "test_a_message_that_left_nothing_to_another_runs"),
    ("51: a follow-up leaves its job to nobody", "celery/unique.py",
     " and not message.end_reserved():", ":",
     RETRIES, "test_a_follow_up_is_not_skipped_for_a_retry_that_leaves_it_the_job"),
    ("51: a retry with an error of its own is a retry", "celery/request.py",
     "error if isinstance(error, Retry) else ", "",
     RETRIES, "test_what_a_retry_has_reserved_stays_when_the_main_process_hears_of_it"),
    ("54: a reservation that ends meanwhile is not reported", "operators/doctor.py",
     "if store.get_note(key_of(job.task, job.name)) == job.task_id:", "if True:",
     "operators/test_doctor.py",
     "test_a_reservation_that_ends_while_its_message_is_looked_for_is_not_reported"),
    ("54: a result of the run that went on is not that of its retry", "celery/unique.py",
     'return task.locks.store.get_note(f"beside {task_id}") is None', "return True",
     GONE, "test_a_result_of_the_run_that_has_sent_the_waiting_retry_is_not_believed"),
    ("54: a silent result backend is asked once", "celery/gone_messages.py",
     "silent |= {task.app} if ended is None else set()", "pass", "operators/test_doctor.py",
     "test_a_result_backend_that_does_not_answer_is_asked_once"),
    ("54: reservations that may be right are ended one by one", "admin/health.py",
     ' and row["ended"]', "", "admin/test_admin.py",
     "test_reservations_that_may_be_right_are_ended_one_by_one"),
    ("54: one thread waits for a broker that hangs", "celery/gone_messages.py",
     "if not any(thread.is_alive() for thread in hung):", "if True:", "operators/test_doctor.py",
     "test_of_a_broker_that_never_answers_nothing_is_said_and_one_thread_waits_for_it"),
    ("54: where no worker answers no message is gone", "celery/gone_messages.py",
     "if answers else set()", "if answers else ids", "operators/test_doctor.py",
     "test_a_reservation_whose_message_may_be_somewhere_is_right"),
    ("53: autoretry_for sees what is not the body's", "celery/run.py",
     "            retry_or_raise(self.message, error)\n", "            raise\n",
     AUTORETRY, "test_a_refusal_is_retried_as_an_error_of_the_body"),
    ("53: a run that died too often is not retried", "celery/run.py",
     "RequeueFailed, TooManyAttempts\n", "RequeueFailed\n",
     AUTORETRY, "test_a_run_that_died_too_often_is_not_retried"),
    ("53: a direct call raises the error itself", "celery/requeue.py",
     "        if message.own:\n", "        if True:\n",
     AUTORETRY, "test_a_direct_call_raises_the_error_itself"),
    ("53: a retry that the broker does not take is no message lost", "celery/requeue.py",
     "        not_sent(message, lost)\n", "",
     AUTORETRY, "test_a_retry_that_the_broker_does_not_take_is_no_message_lost"),
    ("53: an error of the database at the end is retried on the row", "celery/row.py",
     "retry_or_raise(self.message, error)  # Here,", "raise  # Here,",
     AUTORETRY, "test_an_error_of_the_database_at_the_end_is_retried_on_the_row"),
    ("what is given up is an event of the history", "celery/message.py",
     'if outcome == "given_up":', "if not outcome:",
     AUTORETRY, "test_a_refusal_is_retried_as_an_error_of_the_body"),
    ("61: a retry that does not end its run works on the row", "celery/task.py",
     "self._run.row.hand_on(at_once=False)", "pass",
     GUARDED, "test_a_retry_that_does_not_end_its_run_works_on_the_row"),
    ("61: a retry is not dropped for the result of the run that sent it", "celery/message.py",
     " or self.ours.get(BESIDE)", "",
     GUARDED, "test_a_redelivered_retry_of_a_run_that_went_on_is_not_dropped_for_that_ones_result"),
    ("a broadcast message is refused", "celery/message.py",
     "if self.queued and is_broadcast(", "if not self.queued and is_broadcast(",
     REQUESTS, "test_a_message_that_all_workers_got_is_refused_by_each"),
    ("a job that sends itself is told how it ends", "celery/message.py",
     "if parent and why", "if not parent and why", "celery_tasks/test_outcomes.py",
     "test_a_job_that_sends_itself_ends_elsewhere_with_a_warning_that_has_the_mend"),
    ("49: a message is sent again as it was written", "celery/requeue.py",
     "    said[SERIALIZER] = message.ours.get(SERIALIZER) or task.serializer\n", "",
     f"{HARD}/test_before_the_body.py",
     "test_49_a_call_with_a_serializer_of_its_own_waits_and_runs"),
    ("a run that waits leaves its worker free to shut down", "celery/stopping.py",
     'if int.from_bytes(_shared[:], "big") in (os.getpid(), os.getppid()):', "if not _shared:",
     "hard_cases/test_limits_and_shutdowns.py",
     "test_09_a_job_that_waits_for_its_lock_leaves_its_worker_free_to_shut_down"),
    ("an acquire without an answer does not count", "_engine/keeper.py",
     "store, note, names = self.store, own.note, own.names",
     "store, note, names = self.store, None, own.names",
     ATTEMPTS, "test_an_acquire_without_an_answer_does_not_count"),
    ("a run whose release got no answer is not run again", "_engine/keeper.py",
     "return store.release(own.names[0], own.token, note)",
     "return store.release(own.names[0], own.token)",
     ATTEMPTS, "test_a_run_whose_release_got_no_answer_is_not_run_again"),
    ("a redelivery after the end is dropped", "celery/redelivery.py",
     '            case "ended", None | states', '            case "never", None | states',
     REDELIVERY, "test_29_each_message_of_a_reused_task_id_runs_once and no-results"),
    ("a redelivery that waited is judged again", "celery/redelivery.py",
     "            if attempts.changed():\n", "            if False:\n", REDELIVERY,
     "test_a_redelivery_that_waited_for_its_own_run_is_judged_again_without_the_lock"),
    ("an original after its redelivery is dropped", "celery/redelivery.py",
     "            if not run.use.note_kept or attempts.change(1):\n", "            if True:\n",
     REDELIVERY, "test_an_original_that_starts_after_its_redelivery_is_dropped"),
    ("an original runs if others rely on it", "celery/redelivery.py",
     "if message.sent is not None and not message.follows:", "if message.sent is not None:",
     REDELIVERY, "test_an_original_runs_if_others_rely_on_it"),
    ("a late run sends no second successor", "celery/task.py",
     "            run.lease.assert_held()", "            pass", REDELIVERY,
     "test_a_late_run_sends_no_second_successor_and_uses_up_no_retry"),
    ("the lock of a body that raises is released", "celery/run.py",
     "            elif not self._release(lease):",
     "            elif self.error is None and not self._release(lease):",
     TASKS, "test_an_error_or_a_lost_lease_is_no_success_and_leaves_no_lock and KeyError"),
    ("a lost lease is told", "celery/run.py",
     "                    step.lost(self, lease)", "                    pass",
     TASKS, "test_an_error_or_a_lost_lease_is_no_success_and_leaves_no_lock and LeaseLost"),
    ("a late run does not skip its redelivery's row", "guards.py",
     "lease.assert_held()  # If it is lost, a redelivery may have the row.", "pass",
     GUARDED, "test_a_late_run_leaves_the_row_and_the_message_to_its_redelivery"),
    ("a call that was not sent leaves no reservation", "celery/unique.py",
     "if call.draws_id:  #", "if False:  #",
     UNIQUE, "test_a_call_that_was_not_sent_leaves_no_reservation"),
    ("a reservation ends before the body", "celery/run.py",
     "                (self.message.over if lease is None else self.message.end_reserved)()\n", "",
     UNIQUE, "test_the_reservation_ends_before_the_body and locked"),
    ("a skipped message tries the lock once more", "celery/unique.py",
     "            raise Again\n", "",
     UNIQUE, "test_a_skipped_message_tries_once_more_after_its_reservation"),
    ("a follow-up takes its note back when it starts", "celery/message.py",
     "return own | self.task.conflict.reserves(self.job, self.id, self.ours)", "return own",
     COALESCE, "test_a_call_during_the_follow_up_becomes_the_next_one"),
    ("the follow-up is the call that was sent last", "celery/coalesce.py",
     "return None if FollowUp.read(text) > self else self.text",
     "return None if FollowUp.read(text).moment else self.text",
     COALESCE, "test_in_whatever_order_they_arrive_the_last_one_runs"),
    ("a follow-up under the lock leaves the job to a later one", "celery/coalesce.py",
     "if not message.follows or message.attempts.note.starts:", "if True:",
     COALESCE, "test_an_older_follow_up_that_gets_the_lock_leaves_the_job_to_the_newer_one"),
    ("a follow-up that died runs again", "celery/coalesce.py",
     "if not message.follows or message.attempts.note.starts:", "if not message.follows:",
     COALESCE, "test_a_follow_up_that_died_in_its_body_runs_again_before_the_next_one"),
    ("a message that leaves its job ends what it has reserved first", "celery/coalesce.py",
     '            if not message.reserved:\n                raise Skip("coalesced", holder',
     '            raise Skip("coalesced", holder',
     COALESCE, "test_a_call_that_counts_on_a_message_that_leaves_its_job_is_not_lost"),
    ("of many changes of a note none is lost", "stores/notes.py",
     "noting(Note(key, new, ttl), expect)", "noting(Note(key, new, ttl), ANY)",
     CONTRACT, "test_of_many_updates_none_is_lost"),
    ("the messages of a lock come one after the other", "celery/turns.py",
     "after = step + (last if ", "after = step + (0.0 if ",
     "celery_tasks/test_turns.py", "test_the_next_turn"),
    ("a later call of the burst replaces", "celery/debounce.py",
     "return 0 < moment < self.last and moment != self.kept", "return False",
     "celery_tasks/test_debounce.py",
     "test_of_a_burst_the_last_call_runs_with_its_arguments"),
    ("a handle that is adopted is one of the lock", "celery/handing.py",
     "if not _is_of(handle.name, handle.slots, *message.named):", "if False:",
     HANDED, "test_a_wrong_handle_in_a_message_is_no_handle"),
    ("a duplicate ends the lease that was handed on", "celery/handing.py",
     "                end_detached(task, handle)\n", "                pass\n",
     HANDED, "test_a_duplicate_ends_the_lease"),

    ("a row is finished by a conditional UPDATE", "guards.py",
     "return self._update(self._with(pk, fence, self.to), {self.field: status}, left)",
     "return self._update(Q(pk=pk), {self.field: status}, left)",
     GUARDS, "test_row_that_somebody_changed_is_a_conflict"),
    ("a late run does not claim: fence_field", "guards.py",
     "self._update(Q(pk=pk) & work & earlier, ", "self._update(Q(pk=pk) & work, ",
     GUARDS, "test_a_late_run_is_refused_and_the_one_that_has_the_row_finishes_it"),
    ("a late run does not finish: fence_field", "guards.py",
     "            which &= Q((self.fence_field, fence))\n", "            pass\n",
     GUARDS, "test_a_late_run_is_refused_and_the_one_that_has_the_row_finishes_it"),

    ("an outage is not reported as contention", "celery/run.py",
     "            return self._outage(error)\n",
     '            raise Skip("already_processing") from error\n',
     GUARDED, "test_an_outage_is_never_a_skip"),
    ("what somebody else wrote is no record", "stores/records.py",
     "return read if type(read) is dict and _is_ours(read) else None",
     "return read if type(read) is dict else None",
     "stores/test_decoding.py", "test_what_we_could_not_have_written_is_no_record"),
    ("a call never reads what an interrupted one has left", "stores/redis/connections.py",
     "            except BaseException as error:\n                self._close(own)\n",
     "            except BaseException as error:\n                self._idle += [(own[0], 0.0)]\n",
     "stores/test_connections.py", "test_between_any_two_steps"),
    ("a connection that was cut is noticed before a release", "stores/redis/connections.py",
     "if idle < trusted or _is_sound(own[0], idle):", "if True:",
     OUTAGE, "test_leases_are_lost_and_say_so"),

    ("case 60: what a NAT has forgotten is noticed", "stores/redis/connections.py",
     "TRUST_SECONDS if look else IDLE_SECONDS", "TRUST_SECONDS if look else 9e9",
     OUTAGE, "test_no_verb_notices and get"),
    ("case 60: what must not run twice waits for a sign of life", "stores/redis/connections.py",
     "        if idle < IDLE_SECONDS:\n", "        if True:\n",
     OUTAGE, "test_a_block_whose_work_is_done_ends_well"),
    ("what a signal handler raises is no outage", "stores/redis/connections.py",
     "                raise found\n", "                return\n",
     "stores/test_connections.py", "test_they_are_raised"),

    ("leases at masters that answer are renewed beside one that hangs", CLUSTER,
     "RENEWAL_PATIENCE_SECONDS = 0.5\n", "RENEWAL_PATIENCE_SECONDS = 30.0\n",
     CLUSTERS, "test_leases_at_masters_that_answer_are_renewed_beside_one_that_hangs"),
    ("a permit is handed to its own tenant's waiters", "stores/redis/keys.py",
     "if found else queue\n", 'if found else self._key(base) + b" queue"\n',
     "engine/test_kept_keys.py", "test_a_permit_is_handed_to_no_waiter_of_another_tenant"),
    ("a check takes a lock as an acquire does", "stores/redis/check.py",
     '    client.run("acquire", there, [*lease, b"0", member, *lease])\n', "    return\n",
     "stores/test_cluster_changes.py", "test_a_cluster_under_the_plain_store_is_named"),

    ("case 39: a full server lets a lease be handed on", f"{LUA}/put.lua",
     "    if stays then set_end(change) end\n", "",
     "stores/test_redis_refusals.py",
     "test_39_what_is_held_is_extended_renewed_and_released"),
    ("case 42: a last question before a waiter gives up", "_engine/waiting.py",
     "                    grant = yield from self._wait(answer, asked, queued)\n",
     ("                    grant = yield from self._wait(answer, asked, queued)\n"
     "                    if grant is None and clock.now() >= self.deadline:\n"
     "                        return answer, asked\n"),
     WAITING, "test_42_a_waiter_gets_the_lock_at_the_end_of_its_wait"),
    ("case 43: a cache that keeps nothing grants nothing", "stores/cache.py",
     "        if clock.now() < until:\n            raise self.settings.wrong(",
     "        if False:\n            raise self.settings.wrong(",
     "stores/test_cache_store.py", "test_43_no_lock_is_granted_and_no_work_is_done"),
    ("a lock of a quorum is a majority's", f"{QUORUM}/store.py",
     "self.size // 2 + 1", "self.size // 2",
     QUORUMS, "test_what_a_minority_has_is_no_lock"),
    ("a member that may have forgotten a lease does not count", f"{QUORUM}/store.py",
     "if is_new and done.made and", "if False and",
     "stores/test_quorum_faults.py", "test_a_restarted_member_counts_after_the_longest_ttl"),
    ("fences of a quorum grow whatever the members' clocks", f"{QUORUM}/store.py",
     "if len(fences) < 2:", "if True:",
     QUORUMS, "test_they_grow_though_the_member_with_the_greatest_is_gone"),
    ("a minority's votes are given back", f"{QUORUM}/store.py",
     "            self._undo(vote)\n            if", "            if",
     QUORUMS, "test_an_outage_leaves_nothing_behind_where_members_answer"),
    ("a member of a quorum that is late is told of a release", f"{QUORUM}/members.py",
     "even_late = everyone or not", "even_late = not",
     "stores/test_quorum_faults.py",
     "test_a_member_that_was_late_removes_what_was_released_meanwhile"),
    ("a renewed lease of a quorum outlives its members", f"{QUORUM}/store.py",
     "if lost and entry", "if False and entry",
     QUORUMS, "test_an_extension_gives_the_lease_again_to_members_that_have_lost_it"),
    ("an extension of a quorum gives nothing again that is released", f"{QUORUM}/store.py",
     "if entry.token not in self._over:", "if True:",
     QUORUMS, "test_an_extension_gives_nothing_again_that_was_released_meanwhile"),
    ("what is reserved already stays in an outage, in a quorum", f"{QUORUM}/store.py",
     '{**record, "version": version}', "record",
     QUORUMS, "test_what_is_reserved_already_is_not_taken_back_in_an_outage"),
    ("members of a quorum keep a lease for longer", f"{QUORUM}/vote.py",
     "return ttl + ttl * DRIFT + ROUNDING_SECONDS", "return ttl",
     QUORUMS, "test_members_keep_a_lease_for_longer_than_its_holder"),
    ("a doubt about a lease of a quorum is no loss", f"{QUORUM}/vote.py",
     "else len(self.refused) >= self.majority", "else bool(self.refused)",
     QUORUMS, "test_whether_a_lease_is_lost_is_not_known_while_it_may_have_a_majority"),
    ("what a majority of a quorum may have had is released", f"{QUORUM}/vote.py",
     "count += len(self.failed)", "pass",
     QUORUMS, "test_what_a_majority_may_have_had_is_released"),
    ("a slot that has moved is found", CLUSTER,
     "                self._forget(slot)\n", "",
     "stores/test_cluster_changes.py", "test_one_that_has_moved_is_found"),
    ("what a process has of its own is not there for each part of a cluster", CLUSTER,
     "        bucket = copy(self)\n", "        bucket = _Bucket(self.settings)\n",
     CLUSTERS, "test_a_bucket_is_keys_and_a_client"),
    ("the permits of a name are in one slot of a cluster", CLUSTER,
     'base_of(name.rpartition(" ")[2], 1)', 'name.rpartition(" ")[2]',
     CLUSTERS, "test_permits_and_the_reservation_of_a_job_are_beside_the_lock"),
    ("changes in several slots are undone where one is refused", "stores/contract.py",
     "                    self.put([undo])\n", "                    pass\n",
     CLUSTERS, "test_what_was_made_is_undone_where_a_later_change_is_refused"),
)]
# fmt: on


def main(words: Sequence[str]) -> int:
    """Return 0 if all mutants were noticed, 1 otherwise."""
    chosen = [each for each in MUTANTS if any(word in each.guarantee for word in words or [""])]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        survived = sum(pool.map(_survived, chosen))
    print(f"\n{len(chosen)} mutants, {survived} survived")
    return 1 if survived or not chosen else 0


def _survived(mutant: Mutant) -> bool:
    # A test that fails without a mutant as well would notice every one.
    without, by = _failed(mutant._replace(new=mutant.old))
    noticed, by = (False, f"fails without it: {by}") if without else _failed(mutant)
    word = "noticed " if noticed else "SURVIVED"
    print(f"{word}  {mutant.guarantee} ({mutant.file}): {by}", flush=True)
    return not noticed


def _failed(mutant: Mutant) -> tuple[bool, str]:
    """Whether a test has failed on a copy of the package with the mutant, and what pytest says."""
    with tempfile.TemporaryDirectory(prefix="tasklock-mutant-") as folder:
        for name in COPIED:
            here, there = ROOT / name, Path(folder, name)
            if here.is_dir():
                shutil.copytree(here, there, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(here, there)
        file = Path(folder, PACKAGE, mutant.file)
        whole = file.read_text()
        assert whole.count(mutant.old) == 1, f"{mutant.file} has it not once: {mutant.guarantee}"
        file.write_text(whole.replace(mutant.old, mutant.new))
        options = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly")
        command = [sys.executable, "-m", "pytest", *options, f"tests/{mutant.tests}"]
        try:
            done = subprocess.run(
                [*command, "-k", mutant.chosen], cwd=folder, check=False, timeout=SECONDS,
                env=os.environ | {"PYTHONPATH": folder}, capture_output=True, text=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return True, f"not over after {SECONDS:g} s"
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    failed = [line for line in lines if line.startswith(("FAILED tests/", "ERROR tests/"))]
    by = (failed or lines or [done.stderr])[-1]
    if done.returncode > 1:
        return False, f"no test was run: {by}"
    # Negative: killed by a signal, as by a job that was to be given up.
    return done.returncode != 0, by


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
