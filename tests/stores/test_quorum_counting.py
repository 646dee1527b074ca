"""What the answers of members come to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from django_tasklock._values.lock_info import Keyed, LockInfo
from django_tasklock._values.owner import Owner
from django_tasklock.stores.quorum.counting import leading, majority_of, merged, verdict


def info(token: str, ttl: float | None = 10.0, fence: int = 1) -> LockInfo:
    return LockInfo("video:1", ttl, None, token, Owner(), "a", "lock:video:1", fence)


@pytest.mark.parametrize(("size", "majority"), [(3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_two_majorities_have_a_member_in_common(size: int, majority: int) -> None:
    assert majority_of(size) == majority
    assert 2 * majority > size


@pytest.mark.parametrize(
    ("yes", "no", "size", "said"),
    [
        (3, 0, 5, True),
        (2, 2, 5, None),
        (2, 3, 5, False),
        (0, 2, 5, None),
        (0, 3, 5, False),
        (2, 1, 4, None),
        (2, 2, 4, False),
        (3, 1, 4, True),
    ],
)
def test_a_majority_is_believed_and_nothing_else(
    yes: int, no: int, size: int, said: bool | None
) -> None:
    assert verdict(yes, no, size) is said


def test_the_leading_holder_is_the_same_for_everybody() -> None:
    held = [info("b"), info("a"), None, info("a"), info("b")]
    assert leading(held) == (("a", None), 2)
    assert leading(reversed(held)) == (("a", None), 2)
    assert leading([*held, info("b")]) == (("b", None), 3)
    assert leading([None, None]) is None


@pytest.mark.parametrize(
    ("ttls", "unknown", "ttl"),
    [
        ((10.0, 20.0, 30.0, 40.0, 50.0), 0, 30.0),
        ((10.0, 20.0, 30.0), 0, 10.0),
        ((10.0, 20.0, 30.0), 2, 30.0),
        ((10.0, 20.0, 30.0, 40.0), 1, 30.0),
        ((10.0,), 2, 10.0),
        ((None, None, 30.0), 0, 30.0),
        ((None, None, None), 2, None),
    ],
)
def test_a_lock_is_held_until_no_majority_has_it(
    ttls: tuple[float | None, ...], unknown: int, ttl: float | None
) -> None:
    held = [info("a", each) for each in ttls]
    assert merged(("a", None), held, unknown, 5, "default").ttl == ttl


def test_what_most_members_know_of_a_lease_is_shown() -> None:
    held = [info("a", fence=7), info("a", fence=9), info("a", fence=7), info("b", fence=8), None]
    shown = merged(("a", None), held, 0, 5, "default")
    assert (shown.token, shown.fence, shown.store) == ("a", 7, "default")


def test_the_lock_of_a_quorum_has_no_key_of_one_member() -> None:
    name = Keyed.of("video:1", "acme:lock:video:1", "a")
    held = [replace(info("a"), name=name)] * 2
    who, _ = leading(held) or pytest.fail("nobody holds it")
    assert type(merged(who, held, 0, 3, "quorum").name) is str
