"""The tests of tasks on Redis that hold for any store: for a module with a fixture ``room``."""

from __future__ import annotations

from tests.integration.celery.test_coalesce import (
    test_a_redelivery_of_an_ended_run_does_not_count_as_the_follow_up,
    test_all_that_comes_during_a_run_becomes_one_follow_up,
)
from tests.integration.celery.test_debounce import (
    test_a_burst_ends_debounce_max_after_its_first_call,
    test_a_call_during_the_run_runs_later,
    test_a_call_whose_lock_is_held_waits_and_later_ones_replace_it,
    test_a_message_that_comes_late_is_skipped_after_the_last_one_has_run,
    test_calls_that_keep_coming_do_not_push_the_last_of_a_burst_away,
    test_in_any_order_and_from_several_threads_the_last_one_runs_last,
    test_of_a_burst_the_last_call_runs_with_its_arguments,
)
from tests.integration.celery.test_redelivery import (
    test_a_redelivery_of_a_task_that_was_replaced_is_dropped,
    test_a_redelivery_of_a_try_that_ended_in_a_retry_is_dropped,
    test_a_run_that_lost_its_lease_by_its_own_clock_alone_starts_over,
)
from tests.integration.celery.test_reused_task_ids import (
    _no_runs,
    task,
    test_its_next_message_runs_though_it_is_redelivered,
    test_redeliveries_of_each_of_its_messages_are_dropped,
)
from tests.integration.celery.test_run_beside import (
    test_a_redelivery_after_its_run_is_dropped,
    test_a_redelivery_during_its_run_does_not_run_beside_it,
)
from tests.integration.celery.test_unique import (
    test_a_duplicate_may_raise,
    test_a_message_that_does_not_run_leaves_no_reservation,
    test_a_message_that_starts_ends_its_reservation,
    test_a_publish_that_fails_ends_the_reservation,
    test_a_rejected_message_is_reserved_again,
    test_a_reservation_of_a_lost_message_ends_by_itself,
    test_a_revoked_message_keeps_no_reservation,
    test_its_own_retry_is_never_refused,
    test_of_many_who_send_at_once_one_message_is_sent,
    test_unfinished_a_running_one_is_the_only_one,
    test_unfinished_other_work_under_the_lock_is_no_duplicate,
)

__all__ = [
    "_no_runs",
    "task",
    "test_a_burst_ends_debounce_max_after_its_first_call",
    "test_a_call_during_the_run_runs_later",
    "test_a_call_whose_lock_is_held_waits_and_later_ones_replace_it",
    "test_a_duplicate_may_raise",
    "test_a_message_that_comes_late_is_skipped_after_the_last_one_has_run",
    "test_a_message_that_does_not_run_leaves_no_reservation",
    "test_a_message_that_starts_ends_its_reservation",
    "test_a_publish_that_fails_ends_the_reservation",
    "test_a_redelivery_after_its_run_is_dropped",
    "test_a_redelivery_during_its_run_does_not_run_beside_it",
    "test_a_redelivery_of_a_task_that_was_replaced_is_dropped",
    "test_a_redelivery_of_a_try_that_ended_in_a_retry_is_dropped",
    "test_a_redelivery_of_an_ended_run_does_not_count_as_the_follow_up",
    "test_a_rejected_message_is_reserved_again",
    "test_a_reservation_of_a_lost_message_ends_by_itself",
    "test_a_revoked_message_keeps_no_reservation",
    "test_a_run_that_lost_its_lease_by_its_own_clock_alone_starts_over",
    "test_all_that_comes_during_a_run_becomes_one_follow_up",
    "test_calls_that_keep_coming_do_not_push_the_last_of_a_burst_away",
    "test_in_any_order_and_from_several_threads_the_last_one_runs_last",
    "test_its_next_message_runs_though_it_is_redelivered",
    "test_its_own_retry_is_never_refused",
    "test_of_a_burst_the_last_call_runs_with_its_arguments",
    "test_of_many_who_send_at_once_one_message_is_sent",
    "test_redeliveries_of_each_of_its_messages_are_dropped",
    "test_unfinished_a_running_one_is_the_only_one",
    "test_unfinished_other_work_under_the_lock_is_no_duplicate",
]
