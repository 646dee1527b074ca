"""What a project adds to its Celery app for OpenTelemetry: spans go to a file, a line each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import signals
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

SPANS = "SURROUNDINGS_SPANS"


@signals.worker_process_init.connect(weak=False)
def instrument(**kwargs: Any) -> None:
    """Each process has its own exporter."""
    exporter = ConsoleSpanExporter(
        out=Path(os.environ[SPANS]).open("a"),  # noqa: SIM115 - until the process ends
        formatter=lambda span: span.to_json(indent=None) + "\n",
    )
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    instrumentor: Any = CeleryInstrumentor
    instrumentor().instrument()
