"""my_ops.nn.FP4Linear: a linear layer whose weight is stored in 4 bits."""

import torch
from torch import Tensor

from my_ops.fp4_tensor import FP4Tensor
from my_ops.ops._fp4_checks import DTYPE_NAMES, check_format, raise_expected
from my_ops.ops.fp4 import fp4_quantize
from my_ops.ops.fp4_linear import fp4_linear


class FP4Linear(torch.nn.Module):
    """:class:`torch.nn.Linear` with an FP4 weight, for inference and for training around it.

    The weight is frozen; gradients reach the input and the bias. It is initialized as nn.Linear
    does and then quantized; :meth:`from_linear` takes a trained layer. Under autocast the output
    has autocast's dtype. ``load_state_dict`` takes the state of an FP4Linear, and that of an
    nn.Linear, whose weight it quantizes.

    Args:
        in_features, out_features, bias, device, dtype: those of nn.Linear; dtype is float32,
            float16 or bfloat16.
        format: ``"nvfp4"`` or ``"mxfp4"``.

    Called with ``[..., in_features]`` it returns ``[..., out_features]`` as
    :func:`my_ops.fp4_linear` does, which raises what does not fit.

    Raises:
        RuntimeError: for another ``format`` or ``dtype``.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        format: str = "nvfp4",
        device=None,
        dtype=None,
    ):
        super().__init__()
        check_format("nn.FP4Linear", format)
        self._take(torch.nn.Linear(in_features, out_features, bias, device, dtype), format)

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, format: str = "nvfp4") -> "FP4Linear":
        """A layer with the quantized weight of ``linear`` and its own bias parameter.

        Raises:
            RuntimeError: for another ``format``, module, or dtype of its weight.
        """
        check_format("nn.FP4Linear.from_linear", format)
        module = cls.__new__(cls)
        torch.nn.Module.__init__(module)
        module._take(linear, format)
        return module.train(linear.training)

    def _take(self, linear: torch.nn.Linear, format: str) -> None:
        if not isinstance(linear, torch.nn.Linear):
            raise_expected("nn.FP4Linear", "linear", "a torch.nn.Linear", type(linear).__name__)
        dtype = linear.weight.dtype
        if dtype not in DTYPE_NAMES:
            raise_expected("nn.FP4Linear", "dtype", "float32, float16 or bfloat16", dtype)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.format = format
        quantized = fp4_quantize(linear.weight.detach(), format)
        self.weight = torch.nn.Parameter(quantized, requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, Tensor) and x.dtype in DTYPE_NAMES:  # what autocast casts
            device = x.device.type
            if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
                x = x.to(torch.get_autocast_dtype(device))
        if torch.compiler.is_exporting():  # which cannot look into the weight before it decomposes
            return torch.nn.functional.linear(x, self.weight, self.bias)
        return fp4_linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, format='{self.format}'"
        )

    def _load_from_state_dict(self, state_dict, prefix, *args):
        weight = state_dict.get(prefix + "weight")
        if isinstance(weight, Tensor) and not isinstance(weight, FP4Tensor):
            if weight.dtype == torch.float64:
                weight = weight.float()
            state_dict[prefix + "weight"] = fp4_quantize(weight.detach(), self.format)
        super()._load_from_state_dict(state_dict, prefix, *args)
