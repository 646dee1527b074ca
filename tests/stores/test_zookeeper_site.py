"""What an operator and a task see of locks in ZooKeeper; what the store needs of kazoo."""

from __future__ import annotations

import io
import json

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.test import Client

from django_tasklock import lock, locks
from django_tasklock.operators.held import digest_of
from tests.admin.conftest import client_with, operator, page_of
from tests.agent import run_python
from tests.conftest import UseZooKeeper
from tests.eager_task import assert_an_eager_task_locks_and_guards
from tests.steps import LONG, RENEWED, Meanwhile, holder, taken, waiting
from tests.waiting import PATIENCE, until

__all__ = ["client_with", "operator"]


@pytest.fixture(autouse=True)
def on_zookeeper(use_zookeeper: UseZooKeeper) -> None:
    use_zookeeper()


@pytest.mark.nightly
def test_the_checks_find_nothing(transactional_db: None) -> None:
    assert run_checks(tags=["tasklock"], include_deployment_checks=True) == []


def test_the_command_lists_shows_and_clears() -> None:
    lease = taken("video:1")
    taken("audio:1")
    out = io.StringIO()
    call_command("locks", "list", "video:", "--format", "json", stdout=out)
    (row,) = json.loads(out.getvalue())
    assert (row["name"], row["token"]) == ("video:1", lease.token)
    assert row["key"].endswith("/video:1")
    out = io.StringIO()
    call_command("locks", "show", "video:1", stdout=out)
    assert str(lease.fence) in out.getvalue()
    call_command("locks", "clear", "video:1", "--noinput", stdout=io.StringIO())
    assert not locks.is_locked("video:1")
    assert locks.is_locked("audio:1")


@pytest.mark.nightly
def test_the_admin_page_lists_and_clears(transactional_db: None, operator: Client) -> None:
    taken("video:1")
    lease = taken("video:2")
    waiter = Meanwhile(lambda: taken("video:2", wait=PATIENCE))
    until(lambda: waiting("video:2") == 1)
    page = page_of(operator.get("/admin/django_tasklock/lock/"))
    assert "video:1" in page
    assert "video:2" in page
    detail = page_of(operator.get("/admin/django_tasklock/lock/default_3Avideo_3A2/change/"))
    assert lease.token not in detail
    assert digest_of(holder("video:2")) in detail
    assert locks.clear("video:2")
    assert waiter.result().release()


def test_a_task_locks_and_guards(transactional_db: None) -> None:
    assert_an_eager_task_locks_and_guards()


WITHOUT_KAZOO = """
import sys
sys.modules["kazoo"] = None
from django_tasklock import InvalidLockConfig, locks
try:
    locks.acquire("video:1")
except InvalidLockConfig as error:
    print(error)
"""


def test_without_kazoo_the_error_names_the_extra() -> None:
    assert "django-tasklock[zookeeper]" in run_python(WITHOUT_KAZOO)


def test_kazoo_is_loaded_when_the_store_is_made_and_not_before() -> None:
    program = (
        "import sys\nimport django_tasklock.stores.zookeeper\n"
        "from django_tasklock.stores import stores\n"
        "print('kazoo' in sys.modules)\nstores['default']\nprint('kazoo' in sys.modules)\n"
    )
    assert run_python(program).split() == ["False", "True"]


@pytest.mark.nightly
def test_renewal_keeps_a_lease_for_longer_than_its_ttl() -> None:
    with lock("video:1", ttl=RENEWED, renew=True) as lease:
        waiter = Meanwhile(lambda: locks.acquire("video:1", ttl=LONG, wait=RENEWED + 1))
        assert waiter.result() is None
        lease.assert_held()
    assert taken("video:1").release()


HOLD = """
from django_tasklock import locks
print(locks.hold("video:1", {ttl}, by="alice", reason="a migration").token)
"""


@pytest.mark.nightly
def test_an_operators_hold_outlives_the_process_that_made_it() -> None:
    token = run_python(HOLD.format(ttl=LONG)).strip()
    info = holder("video:1")
    assert (info.token, info.held_by, info.reason) == (token, "alice", "a migration")
    assert 0 < (info.ttl or 0) <= LONG
    assert locks.acquire("video:1") is None
    assert locks.clear("video:1", token)
    assert taken("video:1").release()


@pytest.mark.nightly
def test_it_ends_though_nobody_has_seen_it_from_its_beginning() -> None:
    run_python(HOLD.format(ttl=1.0))
    until(lambda: locks.acquire("video:1") is not None)


@pytest.mark.nightly
def test_a_hold_that_waits_begins_when_the_lease_is_over() -> None:
    lease = taken("video:1")
    hold = Meanwhile(lambda: locks.hold("video:1", LONG, by="alice", wait=LONG))
    until(lambda: waiting("video:1") == 1)
    assert lease.release()
    info = hold.result()
    assert info is not None
    assert holder("video:1").token == info.token


@pytest.mark.nightly
def test_a_call_loads_no_module_of_the_store() -> None:
    """An exception from a signal handler might come into the import."""
    program = (
        "import sys\nfrom django_tasklock.stores import stores\nstores['default']\n"
        "from importlib.resources import files\npackage = 'django_tasklock.stores.zookeeper'\n"
        "parts = {file.stem for file in files(package).iterdir() if file.suffix == '.py'}\n"
        "parts -= {'__init__'}\n"
        "print(len(parts), *({f'{package}.{part}' for part in parts} - {*sys.modules}))\n"
    )
    count, *missing = run_python(program).split()
    assert int(count) > 10
    assert missing == []
