"""my_ops under PyTorch's distributed engine: sharding rules for DTensor, tensor parallelism in FP4.

Import it before an operator meets a DTensor. Along a dimension of the mesh each operator keeps
these placements, without communication, forward and backward::

    square, square_     any sharding of x
    rmsnorm             rows sharded, the weight replicated; its gradient is a partial sum
    matmul              rows of a sharded; or columns of b; or the contracted dimension, with a
                        partial sum as the result
    fp4_linear          as matmul; a sharded contracted dimension splits between FP4 blocks
    fp4_matmul          likewise, of dense and of FP4 operands
    fp4_quantize        any sharding of x that leaves blocks and tiles whole: the bytes are those
                        of the whole tensor; none with stochastic rounding, which the gradients of
                        fp4_matmul(backward="fp4") are quantized with
    fp4_dequantize      any sharding of q

DTensor redistributes what fits none of them; the FP4 operators warn where that gathers a tensor.

:class:`ColwiseParallel` and :class:`RowwiseParallel` shard an FP4Linear as torch's styles shard an
nn.Linear. Under FSDP2 and DDP an FP4 weight stays whole on each process
(`fully_shard(..., ignored_params=...)`, `DistributedDataParallel(..., init_sync=False)`).
"""

from my_ops.distributed import _fp4_rules, _rules  # noqa: F401
from my_ops.distributed._parallel import (
    ColwiseParallel,
    RowwiseParallel,
    distribute_fp4,
    gather_fp4,
)

__all__ = ["ColwiseParallel", "RowwiseParallel", "distribute_fp4", "gather_fp4"]
