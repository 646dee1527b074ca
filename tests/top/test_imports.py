"""Tests import what the docs name, and helpers that have homes of their own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PUBLIC = re.compile(
    r"django_tasklock(\.(celery|guards|views|leader|caching|tasks|testing(\.\w+)?|conf|checks"
    r"|signals|exceptions|models|apps|pytest_plugin|admin|contrib(\.(prometheus|opentelemetry))?"
    r"|stores(\.(base|contract|records|waiter|redis|memory|cache|cluster|quorum|zookeeper|database"
    r"))?))?"
)
# They are about what is inside: values that need no store, and what we use of other packages.
EXEMPT = re.compile(
    r"tests/(inside|compat/\w+|top/test_values|engine/test_names"
    r"|stores/test_(any_bytes|decoding|redis_keys))\.py"
)
NOT_YET = """
admin/conftest admin/test_admin celery_apps celery_tasks/conftest celery_tasks/test_autoretry
celery_tasks/test_children celery_tasks/test_coalesce celery_tasks/test_cooling_tasks
celery_tasks/test_deaths celery_tasks/test_locked_task celery_tasks/test_outcomes
celery_tasks/test_own_request celery_tasks/test_redelivery celery_tasks/test_requeues
celery_tasks/test_run_beside celery_tasks/test_task_options celery_tasks/test_task_requests
celery_tasks/test_unique cli/test_command cli/test_command_run cli/test_explain
cli/test_history_command conftest contenders contrib/test_prometheus docs/test_tables
engine/test_async_ends engine/test_interrupts engine/test_kept_keys engine/test_renewal
engine/test_waiters mailroom operators/test_clearing operators/test_doctor operators/test_holders
operators/test_logs operators/test_lost_work operators/test_reservations quorum
stores/contract/queueing stores/contract/recording stores/contract/reserving
stores/contract/rewriting stores/contract/several stores/contract/verbs
stores/test_cache_memcached stores/test_cache_store stores/test_cache_table
stores/test_cluster_store stores/test_connections stores/test_database_connections
stores/test_database_names stores/test_database_store stores/test_dict_store stores/test_handover
stores/test_listener stores/test_listing stores/test_memory_store stores/test_outage
stores/test_queue_order stores/test_quorum_adoption stores/test_quorum_faults
stores/test_quorum_store stores/test_rights stores/test_store_contract stores/test_strangers
stores/test_zookeeper_outages stores/test_zookeeper_store testing/test_helpers zookeepers
"""
"""files that still do"""


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports: those of names that are modules as well."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            inside = ROOT / node.module.replace(".", "/")
            names = {each.name for each in node.names}
            yield from (f"{node.module}.{x.stem}" for x in inside.glob("*") if x.stem in names)


def test_only_inside_imports_inner_modules_and_no_test_imports_a_test() -> None:
    # Given every file of the tests, and what it imports
    wrong: dict[str, set[str]] = {}
    for path in ROOT.glob("tests/**/*.py"):
        name = path.relative_to(ROOT).as_posix()
        for module in imported(path):
            inner = module.startswith("django_tasklock") and not PUBLIC.fullmatch(module)
            # I expect no test among that, and nothing that only `tests.inside` knows
            a_test = re.match(r"tests\.(.*\.)?test_", module)
            if a_test or (inner and not EXEMPT.fullmatch(name)):
                wrong.setdefault(name, set()).add(module)
    not_yet = {f"tests/{name}.py" for name in NOT_YET.split()}
    assert wrong.keys() == not_yet, {name: wrong[name] for name in wrong.keys() - not_yet}
