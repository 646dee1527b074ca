"""``manage.py locks clear`` that ends before it is done: what was cleared is said."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_tasklock import StoreUnavailable, locks
from django_tasklock.cli import clear_locks, list_queued
from django_tasklock.operators.clearing import clear_all_seen
from django_tasklock.operators.reservations import clear_job, key_of
from tests.integration.cli.test_command import acquire, on_redis

__all__ = ["on_redis"]

INTERRUPT = KeyboardInterrupt()
OUTAGE = StoreUnavailable("default", "it is gone")


def failing(times: int, real: Callable[..., Any], error: BaseException) -> Callable[..., Any]:
    """The function, of which only so many calls come back."""
    calls: list[object] = []

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) > times:
            raise error
        return real(*arguments, **options)

    return call


def ended(*arguments: str) -> tuple[str, Exception]:
    """What the command has printed, and how it ended."""
    out = io.StringIO()
    with pytest.raises((CommandError, StoreUnavailable)) as raised:
        call_command("locks", "clear", *arguments, stdout=out, stderr=io.StringIO())
    return out.getvalue(), raised.value


@pytest.mark.parametrize("error", [INTERRUPT, OUTAGE])
def test_locks(on_redis: None, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    # Given two locks that are cleared one after the other
    acquire("video:1", 300)
    acquire("video:2", 600)
    monkeypatch.setattr(clear_locks, "LOCKS_PER_CLEAR", 1)
    clear = failing(1, clear_all_seen, error)
    monkeypatch.setattr(clear_locks, "clear_all_seen", clear)

    # When it ends after the first, I expect to hear of that one
    said, how = ended("--all", "--noinput")
    assert said.startswith("cleared video:1, held by ")
    assert len(said.splitlines()) == 1
    assert_says(how, error, "Interrupted: which others were cleared is not known.")
    assert not locks.is_locked("video:1")


@pytest.mark.parametrize("error", [INTERRUPT, OUTAGE])
def test_reservations(
    on_redis: None, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    for number in (1, 2):
        locks.store.reserve(key_of("videos.process", f"video:{number}"), "id", 60 * number)
    monkeypatch.setattr(list_queued, "clear_job", failing(1, clear_job, error))
    said, how = ended("--all", "--queued", "--noinput")
    assert said == "cleared video:1, reserved for task videos.process[id]\n"
    assert_says(how, error, "Interrupted: which others were cleared is not known.")


def test_ctrl_c_before_the_first_answer(on_redis: None, monkeypatch: pytest.MonkeyPatch) -> None:
    acquire("video:1")
    clear = failing(0, clear_all_seen, INTERRUPT)
    monkeypatch.setattr(clear_locks, "clear_all_seen", clear)
    said, how = ended("video:1")
    assert said == ""
    assert_says(how, INTERRUPT, "Interrupted: whether anything was cleared is not known.")


def assert_says(how: Exception, error: BaseException, words: str) -> None:
    if error is INTERRUPT:
        assert str(how) == words
        assert isinstance(how, CommandError)
        assert how.returncode == 130
    else:
        assert "it is gone" in str(how)
