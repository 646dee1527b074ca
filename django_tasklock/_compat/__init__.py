"""The private and undocumented parts of other packages that this one uses, each with its reason.

Each module is for one part of one package. Import it only where that package is imported anyway:
Celery and redis-py must not be loaded by a project that does not use them. When a new release of
a package breaks something here, ``tests/compat/test_private_apis.py`` says what is gone, or the
tests of the module that uses it do.
"""
