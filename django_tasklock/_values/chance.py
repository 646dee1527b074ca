"""A random generator of the package's own, for pauses that differ and for work now and then.

The one of the module ``random`` belongs to the application: a test that seeds it, or Hypothesis,
would notice that our threads draw from it.
"""

from __future__ import annotations

import os
import random

__all__ = ["chance"]

chance = random.Random()

if hasattr(os, "register_at_fork"):
    # Forked children would all draw the same pauses.
    os.register_at_fork(after_in_child=chance.seed)
