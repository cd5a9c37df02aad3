"""A converted model: the wrapper, conversion, layers, verification and data."""
