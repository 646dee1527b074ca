"""Takes the protections out of the package, one at a time, and runs the tests that hold each.

A mutant is a copy of the package in which one protection is missing: the compare of a token, the
look whether a redelivered message has run. Its tests must fail. If they pass, the mutant has
survived, and shows a hole in the tests.

``make mutants`` runs all of them; ``python -m tests.mutants --list`` names them.
"""
