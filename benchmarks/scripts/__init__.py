"""The training scripts that benchmarks start: one workload, written once for each system under measurement."""
