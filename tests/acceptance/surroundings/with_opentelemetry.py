"""For a worker: the instrumentation of Celery, and ours; spans go to a file, one in each line."""

from __future__ import annotations

import os
from typing import Any

from celery.signals import worker_process_init
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor


@worker_process_init.connect(weak=False)
def instrument(**_: Any) -> None:
    """As the documentation of the instrumentation says: in each process of the pool."""
    out = open(os.environ["SPANS"], "a", buffering=1)  # noqa: SIM115 - for the process's life
    exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(None) + "\n")
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()  # type: ignore[no-untyped-call]
