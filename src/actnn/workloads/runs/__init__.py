"""A training as a run in a folder: settings, contestants, checkpoints, log, and going on after an interruption."""
