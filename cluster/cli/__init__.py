"""The operator's command line: ``mirage``."""
