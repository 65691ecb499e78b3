"""The dense tensors beside FP4 ones: their dtypes, the names of dtypes, their strides."""

import torch

FP4_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# The operators take a dtype by name: AOTInductor of torch 2.11 passes float32 on as float64. Files
# hold it so too; back it is getattr(torch, name).
DTYPE_NAMES = {
    dtype: str(dtype).removeprefix("torch.")
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}


def dense_strides(shape: list[int]) -> list[int]:
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    return strides
