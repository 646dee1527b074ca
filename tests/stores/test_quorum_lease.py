"""What is known of releases that are on their way to a member of a quorum."""

from __future__ import annotations

from django_tasklock.stores.quorum.quorum_lease import QuorumLease


def test_a_release_that_was_answered_is_not_on_its_way() -> None:
    lease = QuorumLease("video:1", "token")
    lease.end_release(0, lease.begin_release(0))
    assert not lease.is_releasing(0)


def test_a_later_one_that_was_answered_or_not_sent_leaves_the_doubt_about_an_earlier_one() -> None:
    lease = QuorumLease("video:1", "token")
    lease.begin_release(0)
    lease.end_release(0, lease.begin_release(0))
    assert lease.is_releasing(0)
    assert not lease.is_releasing(1)


def test_an_earlier_one_that_was_answered_leaves_the_doubt_about_a_later_one() -> None:
    lease = QuorumLease("video:1", "token")
    earlier = lease.begin_release(0)
    lease.begin_release(0)
    lease.end_release(0, earlier)
    assert lease.is_releasing(0)
