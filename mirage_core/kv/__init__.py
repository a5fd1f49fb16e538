"""Elastic KV pools: geometry (pure) and the worker's mapping."""
