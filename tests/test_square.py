"""my_ops.square and square_: values, gradients, layouts, compilation, errors."""

import pytest
import torch
from helpers import message, opcheck_dtype
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.library import opcheck

import my_ops

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
ALL_DTYPES = [*FLOATS, *COMPLEX, *INTEGERS, torch.bool]

# None, one element, below one 16-byte pack, a pack, one past it, a ragged block, several blocks.
SIZES = [0, 1, 3, 16, 17, 1000, 40_001]


def sample(shape, dtype, device):
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype, device=device)
    if dtype == torch.bool:
        return torch.rand(shape, device=device) > 0.5
    return torch.randint(-128, 128, shape, device=device).to(dtype)


def assert_same(actual, expected):
    """Equal to the last bit; complex products within it, where torch may fuse multiply and add."""
    ulp = torch.finfo(actual.dtype).eps if actual.dtype.is_complex else 0
    torch.testing.assert_close(actual, expected, rtol=2 * ulp, atol=2 * ulp, equal_nan=True)


def layouts(device, dtype=torch.float32):
    """Tensors that are not simply contiguous, by name."""
    x = sample((4, 6, 8), dtype, device)
    images = sample((2, 3, 4, 5), dtype, device).to(memory_format=torch.channels_last)
    return {
        "transposed": x.transpose(0, 2),
        "permuted": x.permute(2, 0, 1),
        "channels_last": images,
        "sliced": x[:, ::2, 1:],
        "offset": x[1:, 2:],
        "misaligned": sample((65,), dtype, device)[1:],
        "expanded": x[:1].expand(4, 6, 8),
        "scalar": sample((), dtype, device),
        "size_one": x[:, :1],
    }


def strides(x):
    """The strides that matter: those of dimensions with more than one element."""
    return [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1] if x.numel() else []


LAYOUT_NAMES = list(layouts("cpu"))


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_equals_torch(device, dtype, size):
    x = sample((size,), dtype, device)
    y = my_ops.square(x)
    assert_same(y, torch.square(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_16_bit_pattern_is_rounded_once(device, dtype):
    x = torch.arange(65536, device=device).to(torch.int16).view(dtype)
    expected = x.double().square().to(dtype)
    assert_same(my_ops.square(x), expected)


@pytest.mark.parametrize("dtype", [d for d in ALL_DTYPES if d != torch.bool])
@pytest.mark.parametrize("size", SIZES)
def test_in_place(device, dtype, size):
    x = sample((size,), dtype, device)
    expected = torch.square(x)
    assert my_ops.square_(x) is x
    assert_same(x, expected)


@pytest.mark.parametrize("name", LAYOUT_NAMES)
def test_layouts(device, name):
    x = layouts(device)[name]
    y, expected = my_ops.square(x), torch.square(x)
    assert_same(y, expected)
    assert strides(y) == strides(expected)


@pytest.mark.parametrize("name", [n for n in LAYOUT_NAMES if n != "expanded"])
def test_in_place_layouts(device, name):
    x = layouts(device)[name]
    expected = torch.square(x)
    my_ops.square_(x)
    assert_same(x, expected)


def test_in_place_leaves_the_rest_of_the_storage_alone(device):
    storage = torch.full((100,), 3.0, device=device)
    my_ops.square_(storage[11:20])
    assert storage.tolist() == [3.0] * 11 + [9.0] * 9 + [3.0] * 80


def test_lazy_conjugate_and_negative(device):
    z = sample((5,), torch.complex64, device)
    assert_same(my_ops.square(z.conj()), z.conj().square())
    assert_same(my_ops.square(z.conj().imag), z.imag.square())


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_gradcheck(device, dtype):
    x = torch.randn(3, 4, dtype=dtype, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(my_ops.square, x)
    assert torch.autograd.gradgradcheck(my_ops.square, x)
    assert torch.autograd.gradcheck(lambda x: my_ops.square_(x * 2), x)
    assert torch.autograd.gradgradcheck(lambda x: my_ops.square_(x * 2), x)


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
def test_gradient_is_rounded_once(device, dtype):
    x = torch.randn(1001, dtype=dtype, device=device, requires_grad=True)
    grad = torch.randn(1001, dtype=dtype, device=device)
    (grad_x,) = torch.autograd.grad(my_ops.square(x), x, grad)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    expected = (2 * grad.to(wide) * x.to(wide).conj()).to(dtype)
    if dtype in (torch.float64, torch.complex128):
        torch.testing.assert_close(grad_x, expected)  # the reference is no wider than the result
    else:
        assert_same(grad_x, expected)


@pytest.mark.parametrize("name", LAYOUT_NAMES)
def test_gradient_layouts(device, name):
    grad = layouts(device)[name]
    for x in (torch.randn_like(grad), torch.randn(grad.shape, device=device)):
        x.requires_grad_()
        (grad_x,) = torch.autograd.grad(my_ops.square(x), x, grad)
        assert_same(grad_x, 2 * grad * x.detach())


def test_gradient_of_sum_has_stride_zero(device):
    x = torch.randn(7, 9, device=device, requires_grad=True)
    my_ops.square(x).sum().backward()
    assert_same(x.grad, 2 * x.detach())


def test_no_gradient_is_recorded_without_need(device):
    x = torch.randn(3, device=device, requires_grad=True)
    with torch.no_grad():
        assert my_ops.square(x).grad_fn is None
    assert my_ops.square(x.detach()).grad_fn is None


def test_functional_transforms(device):
    x = torch.randn(4, 3, device=device)
    torch.testing.assert_close(torch.func.vmap(my_ops.square, in_dims=1)(x), x.t().square())
    summed = lambda x: my_ops.square(x).sum()  # noqa: E731
    torch.testing.assert_close(torch.func.grad(summed)(x), 2 * x)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(summed))(x), 2 * x)
    mapped = lambda x: torch.func.vmap(my_ops.square)(x).sum()  # noqa: E731
    torch.testing.assert_close(torch.func.grad(mapped)(x), 2 * x)
    with pytest.raises(RuntimeError, match="jvp"):
        torch.func.jvp(my_ops.square, (x,), (x,))


def test_forward_mode_raises(device):
    forward_ad, named = torch.autograd.forward_ad, torch.ops.my_ops.square
    x = torch.randn(3, 4, device=device)
    with forward_ad.dual_level():
        assert_same(my_ops.square(x), x.square())
        dual = forward_ad.make_dual(x, x)
        with pytest.raises(RuntimeError, match=r"forward AD|jvp"):
            my_ops.square(dual)
        with pytest.raises(RuntimeError, match=r"my_ops\.square: expected no forward-mode"):
            named(dual)
    with pytest.raises(RuntimeError, match=r"my_ops\.square: expected no forward-mode"):
        torch.func.jvp(named, (x,), (x,))


def test_in_place_is_known_to_autograd(device):
    for square_ in (my_ops.square_, my_ops._C.square_, torch.ops.my_ops.square_inplace):
        weight = torch.ones(3, device=device, requires_grad=True)
        for x in (torch.arange(3.0, device=device), torch.ones(3, 6, device=device)[:, ::2]):
            product = weight * x
            version = x._version
            square_(x)
            assert x._version == version + 1
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                product.sum().backward()
        with torch.inference_mode():
            x = torch.ones(3, device=device)
            square_(x)
        with pytest.raises(RuntimeError, match="inference tensor"):
            square_(x)
    leaf = torch.ones(3, device=device, requires_grad=True)
    for x in (leaf, leaf * 1):
        with pytest.raises(
            RuntimeError, match="square_inplace: x: expected a tensor that needs no"
        ):
            torch.ops.my_ops.square_inplace(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int32])
def test_opcheck(device, dtype):
    ops = torch.ops.my_ops
    check = opcheck if dtype in (torch.float32, torch.complex64) else opcheck_dtype
    x = sample((4, 6), dtype, device)
    for view in (x, x.t(), x[:, ::2]):
        check(ops.square_forward.default, (view,))
        check(ops.square_inplace.default, (view,))  # of a copy with the same strides
        if dtype != torch.int32:
            check(ops.square_backward.default, (torch.randn_like(view), view))
            check(ops.square.default, (view.detach().clone().requires_grad_(),))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_without_a_break(device, backend):
    def step(x):
        return my_ops.square(my_ops.square_(x * 3) + 1).sum()

    compiled = torch.compile(step, backend=backend, fullgraph=True, dynamic=True)
    for rows in (3, 8):
        x = torch.randn(rows, 5, device=device, requires_grad=True)
        eager = torch.autograd.grad(step(x), x)
        loss = compiled(x)
        torch.testing.assert_close(loss, step(x))
        torch.testing.assert_close(torch.autograd.grad(loss, x), eager)


def test_raw_operators_have_derivatives(device):
    """So does an exported graph, which consists of them."""
    x = torch.randn(3, device=device, dtype=torch.float64, requires_grad=True)
    grad = torch.randn_like(x, requires_grad=True)
    for op, inputs in (("square_forward", (x,)), ("square_backward", (grad, x))):
        op = getattr(torch.ops.my_ops, op).default
        torch.autograd.gradcheck(op, inputs)
        torch.autograd.gradgradcheck(op, inputs)


def test_kernel_level_functions(device):
    x = torch.randn(5, device=device)
    assert_same(my_ops._C.square(x), x.square())
    expected = x.square()
    assert my_ops._C.square_(x) is x
    assert_same(x, expected)


def test_errors(device):
    x = torch.ones(3, device=device)
    backward = torch.ops.my_ops.square_backward
    unsigned = x.to(torch.uint16)
    assert message(my_ops.square, unsigned).startswith("my_ops.square: x: expected int8, int16")
    assert message(my_ops.square, unsigned).endswith("got UInt16")
    assert message(my_ops.square_, x > 0).endswith("got Bool")
    assert message(backward, x[:2], x) == (
        "my_ops.square_backward: grad: expected the shape of x ([3]), got [2]"
    )
    assert message(backward, x.double(), x) == (
        "my_ops.square_backward: grad: expected the dtype of x (Float), got Double"
    )
    assert message(backward, x.int(), x.int()).endswith(
        "x: expected a floating-point or complex dtype, got Int"
    )
    assert message(my_ops._C.square, torch.ones(3, device="meta")) == (
        "my_ops.square: x: expected a CPU or CUDA tensor, got meta"
    )
    assert message(my_ops._C.square, torch.ones(3).to_sparse()).endswith(
        "expected a strided tensor, got Sparse"
    )
    assert "lazy conjugate" in message(my_ops._C.square, x.to(torch.complex64).conj())
    assert message(my_ops.square_, x[:1].expand(3)) == (
        "my_ops.square_: x: expected memory of its own for each element (clone() it first), "
        "got strides [0]"
    )
    assert message(backward, x, torch.ones(3, device="meta")).endswith("got " + str(x.device))
    assert "got torch.bool" in message(my_ops.square_, torch.ones(3, device="meta") > 0)
    for wrong in (None, "text", [1.0]):
        for function in my_ops.square, my_ops.square_:
            assert message(function, wrong, error=TypeError) == (
                f"my_ops.{function.__name__}: x: expected a tensor, got {type(wrong).__name__}"
            )
    assert "leaf Variable" in message(my_ops.square_, x.clone().requires_grad_())
    with pytest.raises(TypeError):
        my_ops._C.square("text")
    # Nothing was written and the device still works.
    assert my_ops.square(x).tolist() == [1.0, 1.0, 1.0]


@settings(max_examples=100, deadline=None)
@given(
    shape=st.lists(st.integers(0, 7), max_size=4),
    permutation=st.randoms(use_true_random=False),
    step=st.integers(1, 3),
    dtype=st.sampled_from(ALL_DTYPES),
)
def test_any_shape_and_stride(shape, permutation, step, dtype):
    x = sample([size * step for size in shape], dtype, "cpu")
    x = x[tuple(slice(None, None, step) for _ in shape)]
    x = x.permute(permutation.sample(range(x.dim()), x.dim()))
    y, expected = my_ops.square(x), torch.square(x)
    assert_same(y, expected)
    assert strides(y) == strides(expected)


def test_inplace_of_elements_that_share_memory(device):
    """The rows overlap: each value in memory is squared once, not once for each row."""
    memory = torch.arange(1.0, 6.0, device=device)
    my_ops.square_(memory.as_strided((3, 2), (1, 1)))
    assert memory.tolist() == [1, 4, 9, 16, 5]
