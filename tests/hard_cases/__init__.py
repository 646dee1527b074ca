"""The twenty hard cases, run against real workers, real signals and real brokers."""
