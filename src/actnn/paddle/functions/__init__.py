"""PyLayers that keep codes: exact forward by Paddle, unbiased gradient from the code."""
