"""The metadata store: ``port`` is what the controller sees; the rest is Redis behind it."""
