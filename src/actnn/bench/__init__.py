"""Benchmarks, a file a command: contestants in turns, medians and quartiles, memory in processes of its own."""
