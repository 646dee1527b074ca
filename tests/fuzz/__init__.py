"""
Bytes of every shape for all that reads what somebody else may have written.

``make fuzz SECONDS=60`` runs each target (`targets`) with atheris, which looks for inputs that
reach new branches; `make test` runs each for a moment, and with Hypothesis's inputs. A target
raises for an input that breaks what it promises. ``python -m tests.fuzz TARGET FILE`` gives it
one input again, which a run has left in ``.fuzz``.
"""
