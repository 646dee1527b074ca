"""What the command says of a lock that cools."""

from __future__ import annotations

import csv
import io
import json
import logging
import re

import pytest
from django.core.cache import cache
from django.core.management import CommandError

from django_tasklock import LockNotAcquired, lock, locks
from django_tasklock.testing import assert_locked, assert_not_locked
from tests.admin.test_admin_guarded import MakeTask, make_task
from tests.cli.test_command import on_redis, run
from tests.cli.test_explain import fields_of
from tests.steps import holder

__all__ = ["make_task", "on_redis"]
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning"),
]


@pytest.fixture(autouse=True)
def charged(on_redis: None) -> None:
    with lock("pay:7", hold_at_least=600):
        pass


def test_list(charged: None) -> None:
    (_, line) = run("list").splitlines()
    assert line.split()[0] == "pay:7"
    assert "cooling" in line.split()
    (row,) = json.loads(run("list", "--format", "json"))
    assert (row["cooling"], row["alive"]) == (True, None)
    (row,) = csv.DictReader(io.StringIO(run("list", "--format", "csv")))
    assert row["cooling"] == "True"


def test_show() -> None:
    assert fields_of(run("show", "pay:7"))["process"].startswith("cooling down")
    assert json.loads(run("show", "pay:7", "--format", "json"))["cooling"] is True
    locks.clear("pay:7")
    with lock("pay:7"):
        assert json.loads(run("show", "pay:7", "--format", "json"))["cooling"] is False


def test_explain(make_task: MakeTask) -> None:
    name = make_task("job:{job_id}").name
    with lock("job:1", cooldown=600):
        pass
    owner = holder("job:1").owner
    said = fields_of(run("explain", name, "[1]"))["held now"]
    assert re.fullmatch(rf"cooling down for 9m5\ds more, after {re.escape(str(owner))}", said)


def test_the_doctor_finds_nothing_wrong_with_it() -> None:
    assert "pay:7" not in run("doctor")


def test_an_operator_is_told_why_it_cannot_be_held() -> None:
    with pytest.raises(CommandError, match=r"pay:7 is cooling down for 9m\d\ds more: it was held"):
        run("hold", "pay:7", "--for", "1h")


def test_one_that_never_expires_is_not_said_to_end_at_once(make_task: MakeTask) -> None:
    """Other code has taken the TTL of its key away."""
    name = make_task("pay:{job_id}").name
    cache.touch("lock:pay:7", None)
    owner = re.escape(str(holder("pay:7").owner))
    said = fields_of(run("explain", name, "[7]"))["held now"]
    assert re.fullmatch(f"cooling down and never expires, after {owner}", said)
    refusal = f"pay:7 is cooling down, and never expires: it was held by {owner}"
    with pytest.raises(CommandError, match=refusal):
        run("hold", "pay:7", "--for", "1h")
    with pytest.raises(LockNotAcquired, match="is cooling down, and never expires"), lock("pay:7"):
        raise AssertionError


def test_clear_says_that_it_was_cooling(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "django_tasklock"):
        said = run("clear", "pay:7")
    assert said.startswith("cleared pay:7, held by pid ")
    assert said.endswith(", cooling down\n")
    assert "cooling down, was cleared by manage.py locks clear" in caplog.text
    assert not locks.is_locked("pay:7")


def test_a_refusal_is_logged_as_cooling(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "django_tasklock"):
        assert locks.acquire("pay:7") is None
    assert "cooling down: refused to" in caplog.text


def test_the_assertions_of_tests() -> None:
    assert assert_locked("pay:7").cooling
    with pytest.raises(AssertionError, match="cooling down"):
        assert_not_locked("pay:7")
