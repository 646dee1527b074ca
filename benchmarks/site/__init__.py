"""The small Django site that the benchmarks run in."""
