"""Rows with a composite primary key: found behind their locks, and sent again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, models
from django.test.utils import isolate_apps

from django_tasklock import locks
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.guards import StatusGuard
from django_tasklock.operators.doctor import diagnose
from django_tasklock.operators.lost_work import SeenRow, requeue, still_lost
from django_tasklock.operators.rows import guarded_row, key_of
from tests.mailroom import Mailroom
from tests.operators.test_doctor import room
from tests.steps import holder

__all__ = ["room"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def model() -> Iterator[Any]:
    with isolate_apps("tests.app"):

        class Part(models.Model):
            pk = models.CompositePrimaryKey("tenant", "number")
            tenant = models.CharField(max_length=20)
            number = models.IntegerField()
            status = models.CharField(max_length=20)
            fence = models.BigIntegerField(null=True)

            class Meta:
                app_label = "app"

            def __str__(self) -> str:
                return f"part {self.pk}"

        with connection.schema_editor() as editor:
            editor.create_model(Part)
        yield Part
        with connection.schema_editor() as editor:
            editor.delete_model(Part)


def task_for(model: Any, room: Mailroom) -> Any:
    guard = StatusGuard(model, pk="job", source="new", to="busy", done="done", fence_field="fence")
    return room.task(guard=guard)


def test_a_lost_row_is_sent_again(room: Mailroom, model: Any) -> None:
    task_for(model, room)
    for number in (1, 2):
        model.objects.create(tenant='a "b", c', number=number, status="busy")
    rows = [SeenRow.of(problem) for problem in diagnose()]
    (problem,) = still_lost([row for row in rows if row.pk.endswith('"2"]')]).values()
    assert requeue(problem) is not None
    (message,) = room.waiting()
    assert message.kwargs == {"job": ['a "b", c', 2]}


def test_a_lost_row_without_a_fence_is_found(room: Mailroom, model: Any) -> None:
    room.task(guard=StatusGuard(model, pk="job", source="new", to="busy", done="done"))
    row = model.objects.create(tenant="a", number=1, status="busy")
    assert [(problem.kind, problem.pk) for problem in diagnose()] == [("lost work", row.pk)]


def test_the_row_of_a_lock_is_found_by_its_fence(
    room: Mailroom, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    task = task_for(model, room)
    gone = owner_record(task.name, "id") | {"start": 1}
    locks.store.acquire("job:1", new_token(), 600, gone)
    row = model.objects.create(tenant="a", number=1, status="busy", fence=holder("job:1").fence)
    assert guarded_row(holder("job:1")) == (row, task.guard)
    assert [problem.pk for problem in diagnose() if problem.kind == "owner gone"] == [row.pk]
    assert caplog.records == []


@pytest.mark.parametrize("text", ["", "1", "x", "{}", '["a"]', '["a", "b"]', "[" * 100_000])
def test_what_is_no_such_key(model: Any, text: str) -> None:
    guard = StatusGuard(model, source="new", to="busy", done="done")
    assert key_of(guard, text) is None
    assert key_of(guard, json.dumps(["a", "1"])) == ("a", 1)
