"""A discrete-event simulator of engines, devices and clusters over the product's own policy code.

All time is integer *picoseconds* (``_ps``) from the run's start, so that adding up a thousand
steps one by one and all at once gives the same number (see ``step_time``).
"""
