"""The numbers on the pages that explain are those of the code."""

from __future__ import annotations

from django_tasklock._engine import steps, store_renewal, waiting
from django_tasklock.celery import turns
from tests.pages import ROOT, section, table

WAITING = ROOT / "docs/explanation/waiting.md"
ARCHITECTURE = ROOT / "docs/explanation/architecture.md"


def test_what_a_waiter_looks_at_and_how_often() -> None:
    rows = table(WAITING, "What is looked at, and how often", "What")
    when = {row[0].partition(",")[0]: row[1] for row in rows}
    seconds = {
        "Whether the holder's process lives": ("every 50 ms", steps.OWNER_CHECK_SECONDS == 0.05),
        "Whether that process lives": (
            "after one to two seconds for each waiter before it, and ten at most",
            waiting.LATER_OWNER_CHECK_SECONDS == 2 and waiting.MOST_AHEAD == 5,
        ),
        "Whether the lock is held still": ("and 2 ms", waiting.EXPIRY_GRACE_SECONDS == 0.002),
        "The same": ("at the latest 5 s after", waiting.QUEUE_RETRY_SECONDS == 5),
        "Whether a key that other code has set is still there": (
            "every second",
            waiting.FOREIGN_KEY_RETRY_SECONDS == 1,
        ),
        "Whether a lease of ours that somebody made to last for ever is still there": (
            "every 30 s",
            waiting.ENDLESS_LEASE_RETRY_SECONDS == 30,
        ),
        "Whether a long lease is still there": (
            "every 30 s",
            waiting.LONGEST_SILENCE_SECONDS == 30,
        ),
    }
    for what, (said, is_so) in seconds.items():
        assert said in when[what]
        assert is_so, what


def test_how_it_polls() -> None:
    text = section(WAITING, "Where it polls")
    assert "The first pause is 10 ms" in text
    assert waiting.FIRST_POLL_SECONDS == 0.01
    assert "up to a second" in text
    assert waiting.MAX_POLL_SECONDS == 1


def test_how_a_message_waits() -> None:
    text = section(WAITING, "What is kept, and what is not")
    assert "after half a second to 15 s" in text
    assert (turns.FIRST_RETRY_DELAY_SECONDS, turns.LONGEST_RETRY_DELAY_SECONDS) == (0.5, 15)


def test_what_renewal_does() -> None:
    text = section(ARCHITECTURE, "What renewal does")
    assert "up to 500 leases by one script" in text
    assert store_renewal.LEASES_PER_CALL == 500
    assert "after a third of what is left" in text
    assert store_renewal.RENEWAL_SHARE == 1 / 3
    assert "after a tenth of its ttl" in text
    assert store_renewal.FAILURE_SHARE == 1 / 10
