"""What a layer keeps of a request on one rank: keys and values by token, or a state.

vLLM keeps caches by blocks of tokens; a *page* in its words is one block of one layer, here
``block_bytes``.  A state is kept whole, once a request (vLLM without prefix caching of states).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


class CacheKind(Enum):
    FULL = "full"
    """keys and values of every token"""
    MLA = "mla"
    """one latent vector a token, shared by all heads; every rank keeps it whole"""
    SLIDING = "sliding_window"
    """keys and values of the last ``window_tokens`` tokens"""
    CHUNKED = "chunked_local"
    """keys and values of the present chunk of ``window_tokens`` tokens"""
    CROSS = "cross"
    """keys and values of the encoder's output"""
    STATE = "state"
    """a recurrent state: Mamba, linear attention, short convolution"""


@dataclass(frozen=True, slots=True)
class Cache:
    """One cache of one layer on one rank.

    token_bytes    of one token (0 for a state)
    state_bytes    of one request (0 for all others)
    window_tokens  SLIDING and CHUNKED: tokens that are kept at most
    pair_flops     operations of one query token over one kept token, all heads of the rank
    """

    kind: CacheKind
    token_bytes: int = 0
    state_bytes: int = 0
    window_tokens: int | None = None
    pair_flops: int = 0

    def block_bytes(self, block_tokens: int) -> int:
        """Bytes of one block of this layer; of a state, all of it whatever the block."""
        return self.state_bytes or self.token_bytes * block_tokens

    def kept_tokens(self, context_tokens: float, encoder_tokens: int = 0) -> float:
        """Tokens that a request of ``context_tokens`` tokens has in this cache."""
        if self.kind is CacheKind.STATE:
            return 0.0
        if self.kind is CacheKind.CROSS:
            return encoder_tokens
        if self.window_tokens is None:
            return context_tokens
        return min(context_tokens, self.window_tokens)

    def request_blocks(
        self, context_tokens: int, block_tokens: int, encoder_tokens: int = 0
    ) -> int:
        """Blocks that such a request holds; a window may begin and end within a block."""
        kept = self.kept_tokens(context_tokens, encoder_tokens)
        if kept < context_tokens and self.kind is CacheKind.SLIDING:
            return math.ceil((kept - 1) / block_tokens) + 1
        return math.ceil(kept / block_tokens)

    def request_bytes(
        self, context_tokens: int, block_tokens: int = 1, encoder_tokens: int = 0
    ) -> int:
        """Bytes that a request of ``context_tokens`` tokens holds, in whole blocks."""
        blocks = self.request_blocks(context_tokens, block_tokens, encoder_tokens)
        return self.state_bytes + blocks * block_tokens * self.token_bytes
