"""How things are measured: fresh processes, memory, times in turns, records."""
