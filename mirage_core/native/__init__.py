"""The native library: our linear kernels and the transfer engine, free of Python's lock."""

from mirage_core.native.linear import PANEL_COLUMNS, load, packed_bytes, packed_shape

__all__ = ["PANEL_COLUMNS", "load", "packed_bytes", "packed_shape"]
