"""What is trained: data sets, models, contestants and training loops."""
