"""The errors: what can be pickled, and what the package exports."""

from __future__ import annotations

import json
import pickle
from datetime import datetime, timezone

import pytest
from celery import Celery
from django.core.exceptions import ImproperlyConfigured

import django_tasklock
from django_tasklock import LockInfo, exceptions
from django_tasklock._values.owner import Owner
from django_tasklock.stores.redis.client import ReplyLost

INFO = LockInfo(
    "video:1", 12.5, datetime.now(timezone.utc), "t" * 22, Owner("host", 7), "default", "key", 5, 2
)
ERRORS = [
    exceptions.TaskLockError("it"),
    exceptions.LockNotAcquired("video:1", INFO),
    exceptions.LeaseLost("video:1", "its ttl ran out"),
    exceptions.StoreUnavailable("default", "connection refused"),
    ReplyLost("default", "cut"),
    exceptions.ListingNotSupported("default"),
    exceptions.StatusConflict("videos.Video", 7),
    exceptions.InvalidLockConfig("wrong"),
    exceptions.AlreadyQueued("job", INFO, "id-1"),
    exceptions.TooManyAttempts("videos.process", "id-1", 5),
    exceptions.RequeueFailed("videos.process", "id-1", "not JSON serializable"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_survives_pickling(error: Exception) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is type(error)
        assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_can_be_read_from_results_that_are_json(error: Exception) -> None:
    """Celery stores its arguments, and those that JSON cannot hold as text."""
    backend = Celery(set_as_current=False, backend="cache+memory://").backend
    stored = json.loads(json.dumps(backend.prepare_exception(error, "json")))
    again = backend.exception_to_python(stored)
    assert type(again) is type(error)
    if isinstance(again, exceptions.LockNotAcquired) and again.args[1] is not None:
        assert again.holder is None
    if type(error) is exceptions.LockNotAcquired and error.holder is not None:
        assert str(again) == "the lock 'video:1' is taken"
    else:
        assert str(again) == str(error)


def test_tree_is_as_it_is_drawn() -> None:
    for name in exceptions.__all__:
        base = ImproperlyConfigured if name == "InvalidLockConfig" else exceptions.TaskLockError
        assert issubclass(getattr(exceptions, name), base)
        assert f" {name} " in str(exceptions.__doc__) or name == "TaskLockError"


def test_public_names_are_all_there_is() -> None:
    promised = ["lock", "locks", "Event", "Lease", "LockInfo", "LockService", "Owner", "make_name"]
    promised += ["AcquireAllOptions", "AcquireOptions", "LockContext", "LockOptions"]
    promised += ["SkippingDecorator"]
    # Every error too: who catches one should not have to know where it is defined.
    promised += exceptions.__all__
    assert sorted(django_tasklock.__all__) == sorted(promised)
    assert all(hasattr(django_tasklock, name) for name in django_tasklock.__all__)
