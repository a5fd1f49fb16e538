"""The simulator against real runs of the sharing benchmark on vLLM."""
