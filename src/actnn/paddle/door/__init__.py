"""The functional door: sends what a model's own code calls to the operations."""
