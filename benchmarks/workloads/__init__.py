"""The workloads, one module each. Each has ``run(bench) -> Table``."""
