"""The setting TASKLOCK_TASK_URL: the address of the page about a task."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import checks
from django.test.utils import override_settings

from django_tasklock.checks import check_stores
from django_tasklock.conf import task_url
from django_tasklock.exceptions import InvalidLockConfig

RIGHT = [
    ("https://flower/task/{task_id}", "https://flower/task/a%2Fb%20%3F%23%7Bx%7D"),
    (
        "http://127.0.0.1:5555/f/?id={task_id}&x={y}",
        "http://127.0.0.1:5555/f/?id=a%2Fb%20%3F%23%7Bx%7D&x={y}",
    ),
]
WRONG = [
    "", "https://flower/task/", "javascript:alert('{task_id}')", "//flower/{task_id}",
    "/task/{task_id}", "https:///{task_id}", "https://{task_id}.example.com/", "https://[/{task_id}",
    "ftp://flower/{task_id}", b"https://flower/{task_id}", 7, ["https://flower/{task_id}"],
]  # fmt: skip


@pytest.mark.parametrize(("template", "expected"), RIGHT)
def test_the_id_is_quoted(on_locmem: None, template: str, expected: str) -> None:
    with override_settings(TASKLOCK_TASK_URL=template):
        assert task_url("a/b ?#{x}") == expected
        assert [message.id for message in check_stores()] == ["django_tasklock.W001"]


def test_any_text_can_be_an_id() -> None:
    with override_settings(TASKLOCK_TASK_URL="https://flower/{task_id}"):
        assert task_url("\ud800ü") == "https://flower/%3F%C3%BC"


def test_without_the_setting_there_is_none() -> None:
    assert task_url("id") is None


@pytest.mark.parametrize("template", WRONG, ids=repr)
def test_what_is_no_such_address_is_an_error(on_locmem: None, template: Any) -> None:
    with override_settings(TASKLOCK_TASK_URL=template):
        with pytest.raises(InvalidLockConfig, match="TASKLOCK_TASK_URL is an address"):
            task_url("id")
        error, _ = check_stores()
    assert isinstance(error, checks.Error)
    assert error.id == "django_tasklock.E001"
