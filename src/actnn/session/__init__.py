"""All state of one converted model: sites, tags, byte accounts, state and report."""
