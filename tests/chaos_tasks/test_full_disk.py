"""What a full disk may leave behind, of messages that have failed and were sent again."""

from __future__ import annotations

import pytest

from tests.chaos_tasks.rules import NO_ROOM
from tests.chaos_tasks.written_history import A, B, WrittenHistory


def no_claim(written: WrittenHistory, text: str = NO_ROOM) -> None:
    written.send(0, A)
    written.begin(1, A, 11)
    written.fail(1.1, A, 11, "OperationalError", text)
    written.send_again(4, B, after=A, status="new")
    written.run(5, B, 12, 1002)


def no_finish(written: WrittenHistory) -> None:
    written.send(0, A)
    written.die(1, A, 11, 1001)
    written.over(1.5, A, 11, 1001)
    written.fail(1.6, A, 11, "OperationalError", NO_ROOM)


def test_no_claim(written: WrittenHistory) -> None:
    written.fault(1.2, "disk full")
    no_claim(written)
    assert written.rules() == set()


def test_no_claim_though_the_disk_had_room(written: WrittenHistory) -> None:
    written.fault(0.9, "disk full")
    no_claim(written)
    assert written.rules() == {"unexpected failure", "left behind"}


def test_no_claim_of_a_process_that_says_so_late(written: WrittenHistory) -> None:
    """It was stopped before it got the answer, and its message was delivered again."""
    written.fault(1.2, "disk full")
    written.send(0, A)
    written.begin(1, A, 11)
    written.fault(14.5, "child stopped before its claim", whom=11)
    written.begin(14, A, 12, again=True)
    written.fail(14.6, A, 11, "OperationalError", NO_ROOM)
    written.start(14.7, A, 12, 1002)
    written.over(14.8, A, 12, 1002)
    written.end(14.9, A, 12)
    assert "unexpected failure" not in written.rules()


def test_no_claim_for_another_reason(written: WrittenHistory) -> None:
    written.fault(1.2, "disk full")
    no_claim(written, "terminating connection")
    assert written.rules() == {"unexpected failure", "left behind"}


@pytest.mark.parametrize("room", [False, True])
def test_no_claim_of_a_process_that_never_says_so(written: WrittenHistory, room: bool) -> None:
    """It has stored its failure, and is stopped before Celery sends the signal, until it ends."""
    written.fault(1.2, "disk full")
    written.send(0, A)
    written.begin(2 if room else 1, A, 11)
    written.fault(9, "child stopped before its claim", whom=11)
    written.send_again(4, B, after=A, status="new", text=NO_ROOM)
    written.run(5, B, 12, 1002)
    written.begin(9.5, A, 13, again=True)
    written.end(9.6, A, 13, skipped="invalid_state")
    assert written.rules() == ({"left behind"} if room else set())


@pytest.mark.parametrize("mended", [True, False])
def test_no_finish(written: WrittenHistory, mended: bool) -> None:
    written.fault(1.7, "disk full")
    no_finish(written)
    if mended:
        written.send_again(4, B, after=A, status="running")
        written.run(5, B, 12, 1002, before="running")
    assert written.rules() == (set() if mended else {"stuck"})


@pytest.mark.parametrize("at", [1.6, 0.9])
def test_no_failure(written: WrittenHistory, at: float) -> None:
    """The body has raised, and its row is left in the working status."""
    written.fault(at, "disk full")
    written.send(0, A, end="raise")
    written.die(1, A, 11, 1001)
    written.over(1.5, A, 11, 1001, "broke")
    written.fail(1.6, A, 11, "Broken")
    written.send_again(24, B, after=A, status="running", end="raise")
    written.die(25, B, 12, 1002, before="running")
    written.over(26, B, 12, 1002, "broke")
    written.change(26.1, "running", "failed", 1002)
    written.fail(26.2, B, 12, "Broken")
    assert written.rules() == (set() if at == 1.6 else {"left behind"})


def test_a_message_that_has_not_failed_is_not_mended(written: WrittenHistory) -> None:
    written.fault(1.2, "disk full")
    written.send(0, A)
    written.send_again(4, B, after=A, status="new")
    written.run(5, B, 12, 1002)
    assert written.rules() == {"left behind"}
