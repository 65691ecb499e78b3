"""Gradients of the first order alone: differentiating them again raises, and drops nothing."""

import torch

from my_ops.ops._function import fast_apply


def first_order(gradients, anchors, *arguments):
    """gradients(*arguments), the two of fp4_matmul, in its backward.

    anchors: a and b under functorch transforms, where they carry a second differentiation to its
    refusal; else nothing, and a tensor that needs a gradient stands for them, so that it is refused
    where the incoming gradient needs none.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return gradients(*arguments)
    anchors = anchors or (torch.zeros((), requires_grad=True), None)
    return FP4MatMulBackwardFunction.apply(*anchors, gradients, *arguments)


@fast_apply("fp4_matmul")
class FP4MatMulBackwardFunction(torch.autograd.Function):
    """The gradients of fp4_matmul where a graph of them is recorded."""

    generate_vmap_rule = True

    @staticmethod
    def forward(anchor_a, anchor_b, gradients, *arguments):
        return gradients(*arguments)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *grads):
        raise RuntimeError(
            "my_ops.fp4_matmul: its gradients cannot be differentiated again: the operands are "
            "kept in 4 bits only"
        )
