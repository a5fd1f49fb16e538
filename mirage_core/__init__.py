"""MIRAGE: the weights of idle models become KV cache for busy ones.

See ARCHITECTURE.md for the life of a page; DESIGN's word list is used throughout.
"""

__version__ = "0.1.0"
