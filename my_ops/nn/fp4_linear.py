"""my_ops.nn.FP4Linear: a linear layer with a weight in 4 bits, stored so or trained through."""

import numbers

import torch
from torch import Tensor

from my_ops._dense import FP4_DTYPES
from my_ops._errors import check_bool, expected_message, raise_expected
from my_ops.fp4_tensor import FP4Tensor
from my_ops.ops._fp4_checks import check_format
from my_ops.ops._fp4_training import check_options
from my_ops.ops.fp4 import fp4_quantize
from my_ops.ops.fp4_linear import fp4_linear
from my_ops.ops.fp4_matmul import fp4_matmul


class FP4Linear(torch.nn.Module):
    """:class:`torch.nn.Linear` with an FP4 weight.

    By default for inference and for training around it: the weight is stored in 4 bits and frozen,
    gradients reach the input and the bias, and only the weight is quantized
    (:func:`my_ops.fp4_linear`). With ``trainable=True`` the weight is a parameter as that of
    nn.Linear, and each call quantizes it and the input (:func:`my_ops.fp4_matmul`);
    :meth:`freeze` then turns the layer into one of the first kind.

    It is initialized as nn.Linear is; :meth:`from_linear` takes a trained layer. Under autocast the
    output has autocast's dtype; a trainable weight is quantized from its own. ``load_state_dict``
    takes the state of either kind and that of an nn.Linear: it quantizes or decodes the weight. A
    frozen layer takes a quantized weight of its own ``format`` only.

    Args:
        in_features, out_features, bias, device: as nn.Linear takes them.
        dtype: float32, float16 or bfloat16.
        format: ``"nvfp4"`` or ``"mxfp4"``.
        trainable: keep the weight in ``dtype`` and train it.
        backward, block2d, rht: as :func:`my_ops.fp4_matmul` takes them, for a trainable layer.

    Called with ``[..., in_features]`` it returns ``[..., out_features]`` as
    :func:`my_ops.fp4_linear` does, or fp4_matmul, which raise what does not fit.

    Raises:
        RuntimeError: for another ``format``, ``dtype`` or ``backward``, sizes that are none, or
            options that do not go together.
    """

    # Of a module that was pickled before there was the choice.
    trainable, backward, block2d, rht = False, "exact", False, False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        format: str = "nvfp4",
        trainable: bool = False,
        backward: str = "exact",
        block2d: bool | None = None,
        rht: bool = False,
        device=None,
        dtype=None,
    ):
        super().__init__()
        check_format("nn.FP4Linear", format)
        for argument, size in (("in_features", in_features), ("out_features", out_features)):
            if not isinstance(size, numbers.Integral) or size < 0:
                raise_expected("nn.FP4Linear", argument, "an integer from 0 on", repr(size))
        if dtype is not None:
            _check_dtype("nn.FP4Linear", dtype)
        linear = torch.nn.Linear(in_features, out_features, bias, device, dtype)
        self._take("nn.FP4Linear", linear, format, trainable, backward, block2d, rht)

    @classmethod
    def from_linear(
        cls,
        linear: torch.nn.Linear,
        format: str = "nvfp4",
        *,
        trainable: bool = False,
        backward: str = "exact",
        block2d: bool | None = None,
        rht: bool = False,
    ) -> "FP4Linear":
        """A layer with the weight of ``linear``, quantized or as it is, and its own bias parameter.

        The other arguments are those of the class.

        Raises:
            RuntimeError: for another ``format``, module, or dtype of its weight, or options that do
                not go together.
        """
        op = "nn.FP4Linear.from_linear"
        check_format(op, format)
        module = cls.__new__(cls)
        torch.nn.Module.__init__(module)
        module._take(op, linear, format, trainable, backward, block2d, rht)
        return module.train(linear.training)

    def _take(self, op, linear, format, trainable, backward, block2d, rht) -> None:
        if not isinstance(linear, torch.nn.Linear):
            raise_expected(op, "linear", "a torch.nn.Linear", type(linear).__name__)
        _check_dtype(op, linear.weight.dtype)
        check_bool(op, "trainable", trainable)
        if not trainable and backward != "exact":
            raise_expected(op, "backward", "'exact' without trainable=True", repr(backward))
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.format = format
        self.backward, self.rht = backward, rht
        self.block2d = check_options(op, format, backward, block2d, rht, None)
        self.trainable = True
        self.weight, self.bias = linear.weight, linear.bias
        if not trainable:
            self.freeze()

    def freeze(self) -> "FP4Linear":
        """Stores the weight in 4 bits from now on, in place; returns the module.

        The parameter that an optimizer holds is no longer the module's.
        """
        if self.trainable:
            quantized = fp4_quantize(self.weight.detach(), self.format, block2d=self.block2d)
            self.weight = torch.nn.Parameter(quantized, requires_grad=False)
            self.trainable = False
        return self

    def forward(self, x: Tensor) -> Tensor:
        if self.trainable:
            y = fp4_matmul(
                x,
                self.weight.t(),
                self.format,
                backward=self.backward,
                block2d=self.block2d,
                rht=self.rht,
            )
            return y if self.bias is None else y + self.bias.to(y.dtype)
        # torch.export cannot look into an FP4 weight before F.linear is decomposed. In torch 2.11
        # is_exporting() is true under torch.compile, too; a DTensor (device_mesh) needs fp4_linear
        # there.
        if torch.compiler.is_exporting() and not hasattr(x, "device_mesh"):
            return torch.nn.functional.linear(x, self.weight, self.bias)
        return fp4_linear(x, self.weight, self.bias)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, format='{self.format}'"
            + (f", trainable=True, backward='{self.backward}'" if self.trainable else "")
        )

    def _load_from_state_dict(self, state_dict, prefix, *args):
        *_, errors = args
        weight = state_dict.get(prefix + "weight")
        if isinstance(weight, FP4Tensor) and self.trainable:
            state_dict[prefix + "weight"] = weight.detach().dequantize()
        elif isinstance(weight, FP4Tensor) and weight.format != self.format:
            expected, got = f"format '{self.format}'", f"'{weight.format}'"
            errors.append(expected_message("nn.FP4Linear", prefix + "weight", expected, got))
            return
        elif isinstance(weight, Tensor) and not (isinstance(weight, FP4Tensor) or self.trainable):
            weight = weight.detach()
            weight = weight.float() if weight.dtype == torch.float64 else weight
            state_dict[prefix + "weight"] = fp4_quantize(weight, self.format, block2d=self.block2d)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _check_dtype(op: str, dtype) -> None:
    if dtype not in FP4_DTYPES:
        raise_expected(op, "dtype", "float32, float16 or bfloat16", dtype)
