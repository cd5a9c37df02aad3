"""Benchmarks: contestants interleaved in one run, medians and spread, memory in processes of its own."""
