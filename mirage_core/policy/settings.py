"""What an operator chooses of the policy; the ablations of §7 are values of these fields."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mirage_core.errors import ConfigError
from mirage_core.policy.how_many import SlotRule
from mirage_core.policy.when import Reversion
from mirage_core.policy.which_model import DonorOrder

DEFAULT_REVERSION = Reversion(margin_share=0.1, hold_s=1.0)


@dataclass(frozen=True, slots=True)
class Policy:
    """Policy of one device.

    order            who lends first among equals (§5.2)
    slots            how plan tables are built (§5.4, §7.5)
    cap_share        part of a model's unit pages that it may lend at most (§7.6.2)
    max_added_share  part of its resident step that lending may add to an active model's step;
                     0.0: no added step time by the cost model (§5.3)
    reversion        when lent pages go back (§7.6.1); None: never
    recall_share     an active model whose lent units lengthen its step by more than this part gets
                     them back from pools in use of models no more important; None: never
    weights_move     False: KV pools alone share the device's memory, as an elastic KV cache does
    """

    order: DonorOrder = DonorOrder.MRU
    slots: SlotRule = SlotRule.BEST
    cap_share: float = 1.0
    max_added_share: float = 0.0
    reversion: Reversion | None = DEFAULT_REVERSION
    recall_share: float | None = 0.25
    weights_move: bool = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.cap_share <= 1.0:
            raise ConfigError(f"cap_share is a share from 0 to 1, got {self.cap_share}")
        if not 0.0 <= self.max_added_share < math.inf:
            raise ConfigError(f"max_added_share is at least 0, got {self.max_added_share}")
        if self.recall_share is not None and not 0.0 <= self.recall_share < math.inf:
            raise ConfigError(f"recall_share is at least 0, or null, got {self.recall_share}")
