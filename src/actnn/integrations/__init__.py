"""Trainers of others: one line each converts their model, logs what is kept and saves the session's state."""
