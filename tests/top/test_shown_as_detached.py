"""What the command and the admin say of a lease that was detached."""

from __future__ import annotations

import io

import pytest
from django.core.management import call_command
from django.test import Client

from tests.admin.conftest import LIST, client_with, operator, words_of
from tests.conftest import UseRedis
from tests.steps import taken

__all__ = ["client_with", "operator"]


def said(*command: str) -> str:
    out = io.StringIO()
    call_command("locks", *command, stdout=out)
    return out.getvalue()


@pytest.mark.django_db
def test_that_it_waits_for_its_run(use_redis: UseRedis, operator: Client) -> None:
    use_redis()
    taken("video:1").detach()
    assert "detached: it waits for its run" in said("show", "video:1")
    assert "detached" in said("list")
    words = words_of(operator.get(LIST))
    assert "detached" in words
