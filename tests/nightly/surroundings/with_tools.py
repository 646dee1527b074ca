"""What a project adds for Sentry, and to its Celery app for OpenTelemetry; the test says which."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import signals

SENTRY, SPANS = "SURROUNDINGS_SENTRY", "SURROUNDINGS_SPANS"
"""in the environment: the DSN; and the file for spans, a line each"""

if SENTRY in os.environ:
    import sentry_sdk

    # With the integrations that it finds.
    sentry_sdk.init(dsn=os.environ[SENTRY], traces_sample_rate=1.0)


def instrument(**kwargs: Any) -> None:
    """Each process has its own exporter."""
    from opentelemetry import trace
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

    exporter = ConsoleSpanExporter(
        out=Path(os.environ[SPANS]).open("a"),  # noqa: SIM115 - until the process ends
        formatter=lambda span: span.to_json(indent=None) + "\n",
    )
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    instrumentor: Any = CeleryInstrumentor
    instrumentor().instrument()


if SPANS in os.environ:
    signals.worker_process_init.connect(instrument, weak=False)
