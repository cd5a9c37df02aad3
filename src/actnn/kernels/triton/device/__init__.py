"""Functions in Triton's language, which run on an accelerator: what kernels consist of, and the kernels."""
