"""What a profiled step tells: traces turned into blocks of memory, peaks, advice, tables and one HTML page."""
