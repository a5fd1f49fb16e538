"""The paper's evaluation, redrawn by the simulator, each claim with a verdict.

``conditions`` and ``verdicts`` are fixed before any run: what a claim is run under, and when it
counts as reproduced.
"""
