"""Counters and histograms by OpenTelemetry's API.

Add ``"django_tasklock.contrib.opentelemetry"`` to INSTALLED_APPS, and install the extra of that
name.
"""
