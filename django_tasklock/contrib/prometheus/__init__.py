"""Counters and histograms for Prometheus, and a collector of the locks' state.

Add ``"django_tasklock.contrib.prometheus"`` to INSTALLED_APPS, and install the extra of that name.
"""
