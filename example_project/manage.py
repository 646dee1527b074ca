#!/usr/bin/env python
"""``python -m example_project.manage locks list``, and Django's other commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    if sys.path and Path(sys.path[0] or ".").resolve() == here:
        # Started as a file: this folder's celery.py would hide Celery itself.
        sys.path[0] = str(here.parent)
    main()
