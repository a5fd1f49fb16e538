"""Ways of sharing a device's memory, one a file; each says what it models and leaves out.

``StaticArm``, stock vLLM, is beside the protocol (``memory_port``).
"""

from mirage_core.simulator.arms.cpu_attention import CpuAttentionArm
from mirage_core.simulator.arms.elastic import ElasticArm
from mirage_core.simulator.arms.kv_swap import KvSwapArm
from mirage_core.simulator.arms.mirage import MirageArm
from mirage_core.simulator.arms.static_offload import StaticOffloadArm

__all__ = ["CpuAttentionArm", "ElasticArm", "KvSwapArm", "MirageArm", "StaticOffloadArm"]
