"""Devices and the books about their pages: who maps a page, and who owns it.

``host`` maps pages of a memory file; ``ledger`` (agent) and ``table`` (engine) say who owns each
page.  Mapping and owning are kept apart on purpose: a device never asks who owns a page, and the
books never touch memory.
"""
