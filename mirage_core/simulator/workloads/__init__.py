"""Arrivals and lengths of requests: read from a file by its path, or drawn by a seed."""
