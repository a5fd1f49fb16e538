"""Ways of sharing a device's memory, one a file; each says what it models and leaves out."""
