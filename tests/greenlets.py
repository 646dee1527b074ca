"""Programs whose threads gevent or eventlet has made greenlets."""

from __future__ import annotations

import importlib.util

import pytest

from tests.agent import run_python

LIBRARIES = ["gevent", pytest.param("eventlet", marks=pytest.mark.nightly)]

BEGIN = """
import sys
if sys.argv[1] == "gevent":
    from gevent import monkey, sleep, spawn
    monkey.patch_all()
    join = lambda started: started.get()
else:
    import eventlet
    from eventlet import sleep, spawn
    eventlet.monkey_patch()
    join = lambda started: started.wait()
import django
django.setup()
"""


def run_in_greenlets(program: str, library: str = "gevent") -> list[str]:
    """The words that a program prints. It has ``sleep``, ``spawn`` and ``join``.

    Skips the test without the library, which is not imported here: eventlet would warn of each fork
    later.
    """
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    return run_python(BEGIN + program, library, PYTHONWARNINGS="ignore").split()
