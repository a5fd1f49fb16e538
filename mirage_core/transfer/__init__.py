"""Transfers of units from host copies to the device, ahead of their use."""

from mirage_core.transfer.engine import TransferEngine, TransferStats, UnitSpan, UnitStats

__all__ = ["TransferEngine", "TransferStats", "UnitSpan", "UnitStats"]
