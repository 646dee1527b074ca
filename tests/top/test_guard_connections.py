"""A guard whose connection to the database is cut, before its UPDATE or in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, connections, transaction

from django_tasklock import StatusConflict
from django_tasklock.guards import mark_of
from tests.app.rows import guard, job, of
from tests.conftest import ProxyTo
from tests.jobs import jobs_through_proxy
from tests.proxy import CutProxy

GUARD, MARK = guard(), mark_of("a message")
CUT = (OperationalError, InterfaceError)


@pytest.fixture(params=["postgres_alias", pytest.param("mariadb_alias", marks=pytest.mark.nightly)])
def proxy(request: pytest.FixtureRequest, proxy_to: ProxyTo) -> Iterator[CutProxy]:
    """Between the guards and their database, which has a table of jobs."""
    with jobs_through_proxy(request.getfixturevalue(request.param), proxy_to) as proxy:
        yield proxy


@pytest.mark.parametrize("reply_lost", [False, True])
@pytest.mark.parametrize(
    ("verb", "status"), [("finish", "done"), ("fail", "failed"), ("reopen", "queued")]
)
def test_a_row_is_claimed_and_left_though_the_connection_was_cut_before_or_in_the_update(
    proxy: CutProxy, reply_lost: bool, verb: str, status: str
) -> None:
    # Given a connection that is cut before the UPDATE, or when the UPDATE has been carried out
    def trouble() -> None:
        proxy.drop_reply(b"UPDATE") if reply_lost else proxy.cut()

    # I expect every verb to have its effect once, and to say so
    row, alone = job(), job()
    trouble()
    assert GUARD.claim(row.pk, 7) is True
    assert of(row) == ("working", 7)
    trouble()
    assert GUARD.claim_alone(alone.pk, MARK) is True
    assert of(alone) == ("working", MARK)
    trouble()
    assert GUARD.claim_again(alone.pk, 7, MARK) is True
    assert of(alone) == ("working", 7)
    trouble()
    assert getattr(GUARD, verb)(row.pk, 7) is (None if verb == "finish" else True)
    assert of(row)[0] == status


def test_a_row_of_another_run_is_no_ones_who_asks_twice(proxy: CutProxy) -> None:
    row, later, done = job(), job("working", 9), job("done", 9)
    others = job("working", MARK - 1)
    proxy.cut()
    assert not GUARD.claim(later.pk, 7)
    for other in (later, done):
        proxy.cut()
        with pytest.raises(StatusConflict):
            GUARD.finish(other.pk, 7)
    proxy.drop_reply(b"UPDATE")
    assert not GUARD.claim(done.pk, 10)
    for other in (later, done, others):
        proxy.cut()
        assert not GUARD.claim_alone(other.pk, MARK)
        proxy.cut()
        assert not GUARD.claim_again(other.pk, 7, MARK)
    # Without a fence a row does not show whose it is
    proxy.drop_reply(b"UPDATE")
    assert guard(fence_field=None).claim_alone(row.pk, MARK) is False
    assert [of(each) for each in (row, later, done, others)] == [
        ("working", None), ("working", 9), ("done", 9), ("working", MARK - 1)
    ]  # fmt: skip


def test_a_database_that_stays_away_and_a_transaction_that_is_gone_are_reported(
    proxy: CutProxy,
) -> None:
    row = job()
    with proxy.away(), pytest.raises(CUT):
        GUARD.claim(row.pk, 7)
    assert of(row) == ("queued", None)
    # As in a `TestCase`.
    block: Any = transaction.atomic(using="cut")
    block._from_testcase = True
    proxy.cut()
    with pytest.raises(CUT), block:
        GUARD.claim(row.pk, 7)
    connections["cut"].close()
    assert of(row) == ("queued", None)
