"""Until when a ZooKeeper session surely lasts, by the clock of its client."""

from __future__ import annotations

import math

import pytest

from django_tasklock._values import clock
from django_tasklock.stores.zookeeper.session import Session

TIMEOUT = 10.0


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """``moments[0]`` is what the clock shows."""
    shown = [1000.0]
    monkeypatch.setattr(clock, "now", lambda: shown[0])
    return shown


def test_it_lasts_from_when_it_was_asked_for(moments: list[float]) -> None:
    session = Session()
    assert session.left() == 0.0
    session.connected(1000.0, TIMEOUT)
    moments[0] = 1009.9
    assert session.left() == math.inf
    moments[0] = 1010.0
    assert session.left() == 0.0


def test_an_answer_proves_that_the_heartbeat_before_was_heard(moments: list[float]) -> None:
    """By the leader, whom the other servers tell of the sessions every half a tick."""
    session = Session()
    session.connected(1000.0, TIMEOUT)
    session.answered(1002.0)
    moments[0] = 1009.9
    assert session.left() == math.inf
    moments[0] = 1010.0
    assert session.left() == 0.0
    session.answered(1004.0)
    moments[0] = 1011.9
    assert session.left() == math.inf
    moments[0] = 1012.0
    assert session.left() == 0.0


def test_an_answer_that_comes_late_proves_nothing_new(moments: list[float]) -> None:
    session = Session()
    session.connected(1000.0, TIMEOUT)
    session.answered(1004.0)
    session.answered(1002.0)
    session.answered(1004.0)
    moments[0] = 1010.0
    assert session.left() == 0.0


def test_a_resumed_session_lasts_from_then(moments: list[float]) -> None:
    session = Session()
    session.connected(1000.0, TIMEOUT)
    session.connected(1009.0, TIMEOUT / 2)
    moments[0] = 1013.9
    assert session.left() == math.inf
    moments[0] = 1014.0
    assert session.left() == 0.0


def test_it_is_over_as_soon_as_the_client_knows(moments: list[float]) -> None:
    session = Session()
    session.connected(1000.0, TIMEOUT)
    session.lost = True
    assert session.left() == 0.0
