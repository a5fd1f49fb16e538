"""Units, slots and the transitions between remap plans; host copies of weights.

``layout``, ``placement`` and ``transition`` are pure; ``executor`` applies a transition to a
device; ``host_copy`` keeps the bytes that units are fetched from.
"""
