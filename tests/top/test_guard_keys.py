"""A guard on rows with keys of each type: its UPDATEs are Django's own, and built once."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from enum import IntEnum
from typing import Any

import pytest
from django.db import connections, models
from django.db.models import Q
from django.db.models.functions import Now
from django.db.models.sql.compiler import SQLUpdateCompiler
from django.test.utils import CaptureQueriesContext, isolate_apps, override_settings
from django.utils.timezone import now, override

from django_tasklock import StatusConflict
from django_tasklock.guards import StatusGuard

pytestmark = pytest.mark.django_db(transaction=True)

ALIAS = "default"


class ToAlias:
    """Sends the rows of these tests to the database of the test."""

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str | None:
        return ALIAS if model._meta.app_label == "keys" else None

    db_for_write = db_for_read


@pytest.fixture(
    params=["default", "postgres_alias", pytest.param("mariadb_alias", marks=pytest.mark.nightly)]
)
def alias(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = "default"
    if request.param != "default":
        name = request.getfixturevalue(request.param)
    monkeypatch.setattr(f"{__name__}.ALIAS", name)
    with override_settings(DATABASE_ROUTERS=[f"{__name__}.ToAlias"]):
        yield name


@pytest.fixture
def table(alias: str) -> Iterator[Callable[..., Any]]:
    """Makes a model with these fields, and its table."""
    with ExitStack() as stack:
        stack.enter_context(isolate_apps("tests.app"))

        def make(*bases: Any, name: str = "Work", **fields: Any) -> Any:
            fields = {
                "__module__": __name__, "status": models.CharField(max_length=20, default="new"),
                "fence": models.BigIntegerField(null=True), **fields,
                "Meta": type("Meta", (), {"app_label": "keys"} | fields.pop("meta", {})),
            }  # fmt: skip
            model: Any = type(name, bases or (models.Model,), fields)
            with connections[alias].schema_editor() as editor:
                editor.create_model(model)
            stack.callback(_drop, alias, model)
            return model

        yield make


def _drop(alias: str, model: type[models.Model]) -> None:
    with connections[alias].schema_editor() as editor:
        editor.delete_model(model)


def guard(model: type[models.Model], **options: Any) -> StatusGuard:
    return StatusGuard(model, source="new", to="busy", done="done", failed="failed", **options)


def assert_guards(of: StatusGuard, pk: Any, missing: Any) -> None:
    """All verbs say and do, the first time and the second, what they promise."""
    rows = of.model._base_manager.filter(pk=pk)

    def row() -> tuple[str, int | None]:
        found: tuple[str, int | None] = rows.values_list("status", "fence").get()
        return found

    for fence in (5, 6):
        rows.update(status="new")
        assert not of.claim(missing, fence)
        assert of.claim(pk, fence)
        assert row() == ("busy", fence)
        assert not of.claim(pk, fence - 1)
        assert not of.fail(pk, fence - 1)
        with pytest.raises(StatusConflict):
            of.finish(missing, fence)
        of.finish(pk, fence)
        assert row() == ("done", fence)
        assert not of.claim(pk, fence + 1)
    for fence in (7, 8):
        rows.update(status="new")
        assert of.claim(pk, fence)
        assert of.fail(pk, fence)
        assert row() == ("failed", fence)
        rows.update(status="busy")
        assert of.reopen(pk, fence)
        assert row() == ("new", fence)


@pytest.mark.parametrize("pk", [1, "1", 2_000_000_000, 2**40, -7, True])
def test_integers(table: Any, pk: Any) -> None:
    model = table(id=models.BigIntegerField(primary_key=True))
    model.objects.create(pk=pk)
    model.objects.create(pk=3)
    assert_guards(guard(model, fence_field="fence"), pk, 99)
    assert model.objects.get(pk=3).status == "new"


@pytest.mark.parametrize("pk", [2**31, 2**70, -(2**70)])
def test_an_integer_that_no_row_can_have_is_no_work(table: Any, pk: int) -> None:
    model = table(id=models.AutoField(primary_key=True))
    of = guard(model, fence_field="fence")
    for fence in (5, 6):
        assert of.claim(1, fence) is False
        assert of.claim(pk, fence) is False
        assert of.fail(pk, fence) is False


@pytest.mark.parametrize("pk", ["a", "50%", "%s", "'; --", "k-1234567891"])
def test_strings(table: Any, pk: str) -> None:
    model = table(id=models.CharField(max_length=40, primary_key=True))
    model.objects.create(pk=pk)
    model.objects.create(pk="other")
    assert_guards(guard(model, fence_field="fence"), pk, "missing")
    assert model.objects.get(pk="other").status == "new"


class Tidied(models.CharField):
    """A text of which it keeps another form than it is given."""

    def __init__(self, *args: Any, tidy: Callable[[str], str] = str.lower, **options: Any) -> None:
        self.tidy = tidy
        super().__init__(*args, **options)

    def deconstruct(self) -> Any:
        name, path, args, options = super().deconstruct()
        return name, path, args, {**options, "tidy": self.tidy}

    def get_prep_value(self, value: Any) -> Any:
        return self.tidy(super().get_prep_value(value))


@pytest.mark.parametrize(
    ("tidy", "pk", "missing"),
    [(str.lower, "Abc", "Abd"), (str.upper, "Abc", "Abd"), (str.strip, " abc ", " abd ")],
    ids=["lower", "upper", "strip"],
)
def test_strings_that_the_field_tidies(
    table: Any, tidy: Callable[[str], str], pk: str, missing: str
) -> None:
    model = table(id=Tidied(tidy=tidy, max_length=40, primary_key=True))
    model.objects.create(pk=pk)
    assert_guards(guard(model, fence_field="fence"), pk, missing)


def test_a_number_for_a_key_that_is_a_string(table: Any) -> None:
    model = table(id=models.CharField(max_length=40, primary_key=True))
    model.objects.create(pk="17")
    assert_guards(guard(model, fence_field="fence"), 17, 18)


@pytest.mark.parametrize("as_text", [False, True])
def test_uuids(table: Any, as_text: bool) -> None:
    model = table(id=models.UUIDField(primary_key=True))
    pk, missing = uuid.uuid4(), uuid.uuid4()
    model.objects.create(pk=pk)
    mine = guard(model, fence_field="fence")
    assert_guards(mine, str(pk) if as_text else pk, str(missing) if as_text else missing)


def test_keys_of_several_types_for_one_guard(table: Any) -> None:
    model = table(id=models.CharField(max_length=40, primary_key=True))
    model.objects.create(pk="17")
    model.objects.create(pk="18")
    of = guard(model, fence_field="fence")
    assert of.claim("17", 5)
    assert of.claim(18, 5)
    assert not of.claim(uuid.uuid4(), 5)
    of.finish(17, 5)
    of.finish("18", 5)


class Level(IntEnum):
    NONE = 0
    HIGH = 2


def test_a_key_that_is_a_kind_of_integer(table: Any) -> None:
    model = table()
    model.objects.create(pk=1)
    model.objects.create(pk=2)
    of = guard(model, fence_field="fence")
    assert of.claim(1, 4)
    assert_guards(of, Level.HIGH, Level.NONE)
    assert_guards(of, True, False)


def test_a_fence_column_that_cannot_hold_every_fence(table: Any, alias: str) -> None:
    """Django leaves a compare out that such a column always passes."""
    model = table(fence=models.SmallIntegerField(null=True))
    row = model.objects.create(fence=7)
    of = guard(model, fence_field="fence")
    assert not of.claim(row.pk, 6)
    assert not of.claim(row.pk, 7)
    assert of.claim(row.pk, 8)


def test_one_guard_for_the_rows_of_two_databases(
    table: Any, alias: str, sqlite_alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The router sends each call to another one, with keys that they write differently."""
    model = table(id=models.UUIDField(primary_key=True))
    of, there = guard(model, fence_field="fence"), uuid.uuid4()
    row = model.objects.create(pk=uuid.uuid4())
    with connections[sqlite_alias].schema_editor() as editor:
        editor.create_model(model)
    model.objects.using(sqlite_alias).create(pk=there)
    for fence in (5, 6):
        monkeypatch.setattr(f"{__name__}.ALIAS", alias)
        assert of.claim(row.pk, fence)
        assert not of.claim(there, fence)
        monkeypatch.setattr(f"{__name__}.ALIAS", sqlite_alias)
        assert of.claim(there, fence)
        assert not of.claim(row.pk, fence)
    of.finish(there, 6)
    monkeypatch.setattr(f"{__name__}.ALIAS", alias)
    of.finish(row.pk, 6)


def test_calls_with_and_without_a_fence(table: Any) -> None:
    """Of a lease without a fence the row's own stays as it is."""
    model = table()
    of = guard(model, fence_field="fence")
    late, row = model.objects.create(fence=7), model.objects.create(fence=7)
    for fence in (8, 9):
        model.objects.update(status="new")
        assert of.claim(row.pk)
        assert not of.claim(late.pk, 7)
        assert not of.fail(row.pk, 6)
        assert of.fail(row.pk)
        row.refresh_from_db()
        assert (row.status, row.fence) == ("failed", fence - 1)
        model.objects.update(status="new")
        assert of.claim(row.pk, fence)
        of.finish(row.pk, fence)
    late.refresh_from_db()
    assert late.fence == 7


def test_a_model_that_stands_for_another(table: Any) -> None:
    model = table()
    proxy: Any = type(
        "Proxy", (model,),
        {"__module__": __name__, "Meta": type("Meta", (), {"app_label": "keys", "proxy": True})},
    )  # fmt: skip
    assert_guards(guard(proxy, fence_field="fence"), proxy.objects.create().pk, 99)


def test_columns_with_names_of_their_own(table: Any) -> None:
    model = table(
        id=models.BigAutoField(primary_key=True, db_column="Nr. \u00e9"),
        status=models.CharField(max_length=20, default="new", db_column="the order"),
        fence=models.BigIntegerField(null=True, db_column="select"),
    )
    assert_guards(guard(model, fence_field="fence"), model.objects.create().pk, 99)


class Doubtful(models.QuerySet[models.Model]):
    def update(self, **changes: Any) -> int:
        raise AssertionError("a guard uses the base manager alone")


def test_an_update_of_a_projects_own_queryset_is_not_used(table: Any) -> None:
    model = table(objects=models.Manager.from_queryset(Doubtful)())
    assert_guards(guard(model, fence_field="fence"), model.objects.create().pk, 99)


def test_one_of_the_base_manager_is(table: Any) -> None:
    model = table(
        objects=models.Manager.from_queryset(Doubtful)(), meta={"base_manager_name": "objects"}
    )
    row = model.objects.create()
    with pytest.raises(AssertionError, match="base manager"):
        guard(model, fence_field="fence").claim(row.pk, 5)


def test_a_table_of_its_own_for_the_parent(table: Any) -> None:
    parent = table(name="Parent")
    child = table(parent, name="Child", status=None, fence=None, size=models.IntegerField())
    row = child.objects.create(size=1)
    assert_guards(guard(child, fence_field="fence"), row.pk, 99)


@pytest.mark.parametrize("of_parent", ["status", "fence"])
def test_a_parent_that_has_one_of_the_columns(table: Any, of_parent: str) -> None:
    """Django makes two UPDATEs of it."""
    of_child = {"status": "fence", "fence": "status"}[of_parent]
    parent = table(name="Parent", **{of_child: None})
    child = table(parent, name="Child", **{of_parent: None})
    row, other = child.objects.create(), child.objects.create()
    assert_guards(guard(child, fence_field="fence"), row.pk, 99)
    other.refresh_from_db()
    assert child.objects.filter(pk=other.pk, status="new", fence=None).exists()


def test_a_key_that_is_another_row(table: Any) -> None:
    video = table(name="Video")
    work = table(video=models.OneToOneField(video, primary_key=True, on_delete=models.CASCADE))
    of = video.objects.create()
    work.objects.create(video=of)
    assert_guards(guard(work, fence_field="fence"), of.pk, 99)


def test_a_key_of_two_columns(table: Any) -> None:
    model = table(
        pk=models.CompositePrimaryKey("tenant", "number"),
        tenant=models.IntegerField(), number=models.IntegerField(),
    )  # fmt: skip
    model.objects.create(tenant=1, number=2)
    assert_guards(guard(model, fence_field="fence"), (1, 2), (2, 1))


def test_a_fence_without_a_key_in_common(table: Any) -> None:
    """Statuses that are numbers, and a fence with the value of one of them."""
    model = table(status=models.IntegerField(default=0))
    row = model.objects.create()
    of = StatusGuard(model, source=0, to=5, done=6, failed=7, fence_field="fence")
    for fence in (5, 6, 7):
        model.objects.update(status=0)
        assert of.claim(row.pk, fence)
        of.finish(row.pk, fence)
        row.refresh_from_db()
        assert (row.status, row.fence) == (6, fence)


class NotDeleted(models.Manager[models.Model]):
    def get_queryset(self) -> models.QuerySet[models.Model]:
        rows: models.QuerySet[models.Model] = super().get_queryset().filter(deleted=False)
        return rows


def test_a_manager_that_hides_rows_hides_them_from_the_guard(table: Any) -> None:
    model = table(
        deleted=models.BooleanField(default=False), objects=NotDeleted(),
        meta={"base_manager_name": "objects"},
    )  # fmt: skip
    row, gone = model.objects.create(), model.objects.create(deleted=True)
    of = guard(model, fence_field="fence")
    for fence in (5, 6):
        assert not of.claim(gone.pk, fence)
        assert of.claim(row.pk, fence)


def test_a_filter_means_what_it_means_now(table: Any, alias: str) -> None:
    """The name of the time zone is in the SQL."""
    evening = datetime(2026, 1, 1, 23, 0, tzinfo=timezone.utc)
    model = table(due=models.DateTimeField())
    row = model.objects.create(due=evening)
    of = guard(model, filter=Q(due__hour=23))
    with override(timezone.utc):
        assert of.claim(row.pk)
    model.objects.update(status="new")
    with override(timezone(timedelta(hours=9))):
        assert not of.claim(row.pk)


def test_a_filter_with_an_expression(table: Any) -> None:
    model = table(due=models.DateTimeField())
    # SQLite's time is exact to a millisecond only, and may be earlier than what was just written.
    row = model.objects.create(due=now() - timedelta(seconds=1))
    assert guard(model, filter=Q(due__lte=Now())).claim(row.pk)
    row = model.objects.create(due=now() + timedelta(hours=1))
    assert not guard(model, filter=Q(due__lte=Now())).claim(row.pk)


def test_the_sql_is_built_once(table: Any, alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = table()
    rows = [model.objects.create() for _ in range(4)]
    of = guard(model, fence_field="fence")
    of.claim(rows[0].pk, 1)
    of.finish(rows[0].pk, 1)
    built: list[SQLUpdateCompiler] = []
    as_sql = SQLUpdateCompiler.as_sql

    def noted(compiler: SQLUpdateCompiler) -> Any:
        built.append(compiler)
        return as_sql(compiler)

    monkeypatch.setattr(SQLUpdateCompiler, "as_sql", noted)

    with CaptureQueriesContext(connections[alias]) as queries:
        for fence, row in enumerate(rows[1:], start=2):
            assert of.claim(row.pk, fence)
            of.finish(row.pk, fence)

    assert built == []
    assert [query["sql"].split()[0] for query in queries] == ["UPDATE"] * 6
