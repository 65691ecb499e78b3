"""A program that uses all of the public API, for mypy: its types are those that `my_ops` states."""

import torch
from torch import Tensor
from typing_extensions import assert_type

import my_ops

x, weight = torch.randn(4, 64), torch.ones(64)
assert_type(my_ops.square(x), Tensor)
assert_type(my_ops.square_(x), Tensor)
assert_type(my_ops.rmsnorm(x, weight, eps=None, cast_order="hf", out_dtype=torch.float32), Tensor)
assert_type(my_ops.add_rmsnorm(x, x, weight), tuple[Tensor, Tensor])
assert_type(my_ops.matmul(x, x.t(), precision="bf16x6"), Tensor)
q = my_ops.fp4_quantize(x, "mxfp4", axis=-1)
assert_type(q, my_ops.FP4Tensor)
assert_type(q.scale, Tensor)
assert_type(q.amax, Tensor | None)
assert_type(q.dequantize(torch.float16), Tensor)
assert_type(my_ops.fp4_dequantize(q), Tensor)
assert_type(my_ops.fp4_linear(x, q, None), Tensor)
assert_type(my_ops.fp4_matmul(x, x.t()), Tensor)
assert_type(my_ops.rmsnorm_fp4_quantize(x), my_ops.FP4Tensor)
assert_type(my_ops.fp4_report(x).sqnr_db, float)
assert_type(my_ops.fp4_unswizzle_scales(my_ops.fp4_swizzle_scales(q.scale), 4, 2), Tensor)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = my_ops.nn.RMSNorm(64, device="cpu")
        self.linear = my_ops.nn.FP4Linear(64, 64, bias=False, format="nvfp4")

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(self.norm(x))
        return y


report = my_ops.nn.patch(Model(), linear="fp4")
assert_type(report, my_ops.nn.PatchReport)
assert_type(report.replaced, dict[str, str])
layer = my_ops.nn.FP4Linear.from_linear(torch.nn.Linear(64, 64))
assert_type(layer, my_ops.nn.FP4Linear)
tensors, metadata = my_ops.nn.flatten_state_dict(layer.state_dict())
assert_type(tensors, dict[str, Tensor])
assert_type(my_ops._C.square(x), Tensor)
