"""What a run that failed says last: which tests, with which seeds, and how to run them again."""

from __future__ import annotations

import re
from typing import Any

import pytest

__all__ = ["say_what_failed"]

MOST = 12
"""tests that are named; a run in which more have failed has one cause, mostly"""
WIDTH = 160


def say_what_failed(config: pytest.Config) -> None:
    """Print it below everything else; nothing where nothing has failed."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return
    failed = [*reporter.stats.get("failed", ()), *reporter.stats.get("error", ())]
    if not failed:
        return
    reporter.section("what failed, and how to run it again")
    seeds: set[str] = set()
    for report in failed[:MOST]:
        printed = "\n".join(text for _, text in report.sections)
        own = sorted(set(re.findall(r"^SEED=(\w+)", printed, re.MULTILINE)))
        seeds.update(own)
        crash = getattr(report.longrepr, "reprcrash", None)
        message = crash.message.splitlines()[0] if crash and crash.message else report.when
        with_seeds = "".join(f" SEED={seed}" for seed in own)
        reporter.write_line(f"{report.nodeid}: {message[:WIDTH]}{with_seeds}")
    if len(failed) > MOST:
        reporter.write_line(f"and {len(failed) - MOST} more")
    make = "nightly-tests" if config.getoption("--nightly") else "test"
    with_seed = f"SEED={seeds.pop()} " if len(seeds) == 1 else ""
    order = f"--randomly-seed={config.getoption('randomly_seed', None)}"
    named = " ".join(f"'{report.nodeid}'" for report in failed[:MOST])
    reporter.write_line(f'{with_seed}make {make} ARGS="{order} {named}"')
