"""Other libraries' operators, imported when they are to be timed.

Each function returns the peer's function. What it raises (the package is missing, the GPU or the
shape is not supported) becomes the row of that peer.
"""

import torch
from torch.nn import functional as F


def missing_on_cpu(function):
    """These packages hold GPU kernels: on a CPU they are not even imported."""

    def load(device, *args, **kwargs):
        if device == "cpu":
            raise RuntimeError("needs a GPU")
        return function(device, *args, **kwargs)

    return load


def compiled(device, function):
    """torch.compile, one graph for each shape; its backward can be run again and again."""
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False
    return torch.compile(function, dynamic=False, fullgraph=True)


def torch_rms_norm(device, eps):
    return lambda x, weight: F.rms_norm(x, weight.shape, weight, eps)


def torch_add_rms_norm(device, eps):
    def add_rms_norm(x, residual, weight):
        total = x + residual
        return F.rms_norm(total, weight.shape, weight, eps), total

    return add_rms_norm


def compiled_rms_norm(device, eps):
    return compiled(device, torch_rms_norm(device, eps))


def compiled_add_rms_norm(device, eps):
    return compiled(device, torch_add_rms_norm(device, eps))


@missing_on_cpu
def liger_rms_norm(device, eps):
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    # "gemma": float32 throughout, rounded once; not in place, as the gradient is used again.
    return lambda x, weight: LigerRMSNormFunction.apply(x, weight, eps, 0.0, "gemma", False)


@missing_on_cpu
def liger_add_rms_norm(device, eps):
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

    return lambda x, residual, weight: LigerFusedAddRMSNormFunction.apply(
        x, residual, weight, eps, 0.0, "gemma", False
    )


@missing_on_cpu
def quack_rms_norm(device, eps):
    from quack import rmsnorm

    return lambda x, weight: rmsnorm(x, weight, eps=eps)


@missing_on_cpu
def quack_add_rms_norm(device, eps):
    from quack import rmsnorm

    return lambda x, residual, weight: rmsnorm(x, weight, residual=residual, eps=eps, prenorm=True)


@missing_on_cpu
def torchao_nvfp4(device, amax):
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize

    quantize, scale = torch.compile(nvfp4_quantize), amax / 2688
    return lambda x: quantize(x, 16, scale)


@missing_on_cpu
def torchao_mxfp4(device):
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    quantize = torch.compile(to_mx)
    return lambda x: quantize(x, torch.float4_e2m1fn_x2, 32)


@missing_on_cpu
def bitsandbytes_quantize(device):
    from bitsandbytes.functional import quantize_4bit

    return lambda x: quantize_4bit(x, blocksize=64, quant_type="fp4")


@missing_on_cpu
def bitsandbytes_dequantize(device):
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit


@missing_on_cpu
def bitsandbytes_linear(device, weights):
    """linear(x, i) with the i-th of `weights`, quantized to bitsandbytes' own 4-bit format."""
    from bitsandbytes import matmul_4bit

    quantize = bitsandbytes_quantize(device)
    quantized = [quantize(weight) for weight in weights]
    return lambda x, i: matmul_4bit(x, quantized[i][0].t(), quant_state=quantized[i][1])


@missing_on_cpu
def humming_linear(device, weights, format):
    from humming.layer import HummingLayer

    scale, block = {"nvfp4": ("float8e4m3", 16), "mxfp4": ("float8e8m0", 32)}[format]
    config = {"dtype": "float4e2m1", "scale_dtype": scale, "group_size": block}
    layers = []
    for weight in weights:
        N, K = weight.shape
        layer = HummingLayer(shape_n=N, shape_k=K, weight_config=config, torch_dtype=weight.dtype)
        layer = layer.to(device)
        layer.load_from_unquantized(weight)
        layer.transform()
        layers.append(layer)
    return lambda x, i: layers[i](x)
