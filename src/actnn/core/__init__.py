"""Framework-free core: format, codes, policies, sessions and reports."""
