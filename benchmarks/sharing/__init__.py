"""Two models on one device, four ways of sharing its memory, side by side in one run.

Stock vLLM with static pools, the plug-in with nothing moving, elastic pools, and MIRAGE serve the
same requests through vLLM's own HTTP servers.  ``python -m benchmarks.sharing --help``.
"""
