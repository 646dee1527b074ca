"""The optional apps as a site installs them: each counts, and nothing else imports it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

ROOT = Path(__file__).parents[2]
LIBRARIES = {"prometheus": "prometheus_client", "opentelemetry": "opentelemetry"}
SITE = """
import sys
from django.conf import settings
from tests import settings as of_tests

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refusing())
known = {name: value for name, value in vars(of_tests).items() if name.isupper()}
known["INSTALLED_APPS"] = [*of_tests.INSTALLED_APPS, *sys.argv[1].split()]
known["TASKLOCK"] = {"default": {"BACKEND": "django_tasklock.stores.memory.MemoryStore"}}
settings.configure(**known)
import django
django.setup()
import django_tasklock.celery
from django.core.management import call_command
from django_tasklock import lock
call_command("check")
call_command("makemigrations", "--check", "--dry-run", verbosity=0)
call_command("locks", "list")
"""
IMPORTED = """
print([name for name in sys.modules if name.startswith((
    "prometheus_client", "opentelemetry", "django_tasklock.contrib"))])
"""
COUNTED = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))

@lock("video:{video_id}")
def work(video_id):
    pass

work(1), work(2)
(resource,) = reader.get_metrics_data().resource_metrics
((_, acquires), (_, waits), (unit, holds)) = [
    (metric.unit, *metric.data.data_points) for metric in resource.scope_metrics[0].metrics]
print(acquires.value, waits.count, holds.count, unit, 3600.0 in holds.explicit_bounds,
      *acquires.attributes.values())
"""


def last_line(apps: str, *refused: str, then: str = "", **environment: str) -> str:
    """What a process of a site with these apps, in which some modules cannot be imported, prints
    last; its error, if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", SITE + then, apps, *refused],
        cwd=ROOT, env=os.environ | environment,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1]


@pytest.mark.parametrize("refused", [(), LIBRARIES.values()], ids=["there", "missing"])
def test_a_site_without_the_apps_imports_neither_them_nor_their_libraries(
    refused: list[str],
) -> None:
    assert last_line("", *refused, then=IMPORTED) == "[]"


@pytest.mark.parametrize("app", LIBRARIES)
def test_an_app_without_its_library_says_which_extra_to_install(app: str) -> None:
    said = last_line(f"django_tasklock.contrib.{app}", LIBRARIES[app])
    assert "ImproperlyConfigured" in said
    assert f'pip install "django-tasklock[{app}]"' in said
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    extras = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    assert re.search(f"^{app} = ", extras, re.MULTILINE)


def test_processes_with_the_app_for_prometheus_count_together(tmp_path: Path) -> None:
    """In prometheus_client's multiprocess mode, as the children of a worker do."""
    needs.package("prometheus_client")
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector

    app, then = "django_tasklock.contrib.prometheus", "lock('a')(print)('done')"
    for _ in range(2):
        assert last_line(app, then=then, PROMETHEUS_MULTIPROC_DIR=str(tmp_path)) == "done"
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))  # type: ignore[no-untyped-call]
    counted = 'tasklock_acquires_total{lock="a",outcome="acquired",store="default"} 2.0'
    assert counted in generate_latest(registry).decode().splitlines()


def test_the_app_for_opentelemetry_counts_the_same_by_the_sdk_of_the_project() -> None:
    needs.package("opentelemetry.sdk")
    said = last_line("django_tasklock.contrib.opentelemetry", then=COUNTED)
    assert said == "2 2 2 s True video:{video_id} default acquired"
