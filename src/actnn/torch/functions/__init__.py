"""Autograd functions that keep codes: exact forward by torch, unbiased gradient from the code."""
