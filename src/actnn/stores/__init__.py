"""Where the bytes of codes lie between forward and backward."""
