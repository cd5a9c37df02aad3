"""Rules about single mathematical functions: what each keeps, shares, reads in backward and costs in noise."""
