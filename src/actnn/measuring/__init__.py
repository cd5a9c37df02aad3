"""How things are measured: fresh processes, memory, times in turns, runs and their records, and the machine."""
