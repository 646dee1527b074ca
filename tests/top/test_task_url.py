"""The setting TASKLOCK_TASK_URL: the address of the page about a task."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import checks
from django.test.utils import override_settings

from django_tasklock.checks import check_stores
from django_tasklock.conf import task_url
from django_tasklock.exceptions import InvalidLockConfig

WRONG = [
    "", "https://flower/task/", "javascript:alert('{task_id}')", "//flower/{task_id}",
    "https:///{task_id}", "https://{task_id}.example.com/", "https://[/{task_id}", 7,
]  # fmt: skip


def test_the_id_is_quoted(on_locmem: None) -> None:
    assert task_url("id") is None
    with override_settings(TASKLOCK_TASK_URL="http://127.0.0.1:5555/f/?id={task_id}&x={y}"):
        assert task_url("a/b ?#{x}") == "http://127.0.0.1:5555/f/?id=a%2Fb%20%3F%23%7Bx%7D&x={y}"
        assert task_url("\ud800ü") == "http://127.0.0.1:5555/f/?id=%3F%C3%BC&x={y}"
        assert [message.id for message in check_stores()] == ["django_tasklock.W001"]


@pytest.mark.parametrize("template", WRONG, ids=repr)
def test_what_is_no_such_address_is_an_error(on_locmem: None, template: Any) -> None:
    with override_settings(TASKLOCK_TASK_URL=template):
        with pytest.raises(InvalidLockConfig, match="TASKLOCK_TASK_URL is an address"):
            task_url("id")
        error, _ = check_stores()
    assert isinstance(error, checks.Error)
    assert error.id == "django_tasklock.E001"
