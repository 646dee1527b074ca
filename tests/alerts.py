"""The alert rules that the project ships, as tests read them."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.pages import DOCS

RULES = DOCS / "operations/alerts.yml"


class Rule(NamedTuple):
    """One alert."""

    alert: str
    expr: str
    severity: str
    summary: str
    runbook_url: str


def rules() -> list[Rule]:
    """Those of the file that have all that a rule must have, in the form that the file has."""
    form = (
        r"- alert: (\w+)\n +expr: (.+)\n(?: +for: \w+\n)? +labels: \{severity: (\w+)\}\n"
        r" +annotations:\n +summary: (.+[.?])\n +runbook_url: (\S+)\n"
    )
    return [Rule(*found) for found in re.findall(form, RULES.read_text("utf-8"))]
