"""A small byte-level transformer and its text: the parts of train_tiny_lm.py that are not my_ops'.

The model is a plain pre-norm decoder with rotary positions. Everything that differs between
plain PyTorch and my_ops stands in one `Operators` value, so both train the very same model.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 256  # bytes
EPS = 1e-6


@dataclass(frozen=True)
class Operators:
    """The operators that a model is built from."""

    name: str
    rmsnorm: Callable[..., Tensor]  # (x, weight or None) -> Tensor
    square: Callable[[Tensor], Tensor]
    matmul: Callable[[Tensor, Tensor], Tensor]  # a [..., M, K] @ b [K, N], the head
    block_matmul: Callable[[Tensor, Tensor], Tensor]  # the same in attention and MLP


@dataclass(frozen=True)
class Shape:
    """Sizes of the model. Every K of a product is a multiple of 32, MXFP4's block."""

    layers: int = 4
    width: int = 128
    heads: int = 4
    hidden: int = 512
    context: int = 128


class RMSNorm(nn.Module):
    def __init__(self, width: int, operators: Operators):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.rmsnorm = operators.rmsnorm

    def forward(self, x: Tensor) -> Tensor:
        return self.rmsnorm(x, self.weight)


class Linear(nn.Linear):
    """torch's linear layer without bias whose product is `matmul`; its weight stays [out, in]."""

    def __init__(self, in_features: int, out_features: int, matmul: Callable, scale: float = 1.0):
        super().__init__(in_features, out_features, bias=False)
        self.matmul = matmul
        nn.init.normal_(self.weight, std=scale / math.sqrt(in_features))

    def forward(self, x: Tensor) -> Tensor:
        return self.matmul(x, self.weight.t())


class Attention(nn.Module):
    def __init__(self, shape: Shape, operators: Operators):
        super().__init__()
        self.head_width, self.rmsnorm = shape.width // shape.heads, operators.rmsnorm
        self.qkv = Linear(shape.width, 3 * shape.width, operators.block_matmul)
        residual_scale = 1 / math.sqrt(2 * shape.layers)  # keeps the sum over all layers near 1
        self.out = Linear(shape.width, shape.width, operators.block_matmul, residual_scale)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # q, k and v of a head lie side by side, so that processes can share out the heads.
        q, k, v = self.qkv(x).unflatten(-1, (-1, 3, self.head_width)).unbind(-2)
        q = rotate(self.rmsnorm(q, None), cos, sin)
        k = rotate(self.rmsnorm(k, None), cos, sin)
        q, k, v = (t.transpose(-3, -2) for t in (q, k, v))  # [batch, heads, time, head width]
        # The score and value products have a second operand for each sequence and head, which
        # my_ops.matmul does not take: torch's fused attention is the right tool for them.
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(-3, -2).flatten(-2))


class MLP(nn.Module):
    """A squared ReLU between two products."""

    def __init__(self, shape: Shape, operators: Operators):
        super().__init__()
        self.square = operators.square
        self.up = Linear(shape.width, shape.hidden, operators.block_matmul)
        residual_scale = 1 / math.sqrt(2 * shape.layers)
        self.down = Linear(shape.hidden, shape.width, operators.block_matmul, residual_scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.square(F.relu(self.up(x))))


class Block(nn.Module):
    def __init__(self, shape: Shape, operators: Operators):
        super().__init__()
        self.attention_norm = RMSNorm(shape.width, operators)
        self.attention = Attention(shape, operators)
        self.mlp_norm = RMSNorm(shape.width, operators)
        self.mlp = MLP(shape, operators)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class TinyLM(nn.Module):
    """Bytes [batch, time] -> logits [batch, time, 256]."""

    def __init__(self, shape: Shape, operators: Operators):
        super().__init__()
        self.shape, self.operators = shape, operators
        self.embedding = nn.Embedding(VOCABULARY, shape.width)
        self.blocks = nn.ModuleList(Block(shape, operators) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.width, operators)
        self.head = Linear(shape.width, VOCABULARY, operators.matmul)
        nn.init.normal_(self.embedding.weight, std=1.0)
        # The first prediction is even over all bytes: a first loss of ln 256.
        nn.init.zeros_(self.head.weight)
        cos, sin = rotary_table(shape.context, shape.width // shape.heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.shape[-1]
        cos, sin = self.cos[:time], self.sin[:time]
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def rotary_table(context: int, head_width: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles, each [context, 1, head_width / 2]."""
    frequency = 1000.0 ** -torch.linspace(0, 1, head_width // 2)
    angle = torch.outer(torch.arange(context).float(), frequency)[:, None, :]
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs (x[i], x[i + half]) of [batch, time, heads, width] by their angles."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


@dataclass(frozen=True)
class Text:
    """Training and held-out bytes, and windows of them by number."""

    train: Tensor
    held_out: Tensor
    context: int

    @staticmethod
    def load(context: int) -> "Text":
        """Python's own language reference, as `help()` shows it: about half a megabyte of prose."""
        from pydoc_data.topics import topics

        # Topics contain each other; without repetition nothing held out was also trained on.
        paragraphs = dict.fromkeys(
            "\n\n".join(topics[name] for name in sorted(topics)).split("\n\n")
        )
        prose = (p for p in paragraphs if not re.search(r"^\s*[|+]", p, re.MULTILINE))  # no tables
        data = "\n\n".join(prose).encode()
        tokens = torch.frombuffer(bytearray(data), dtype=torch.uint8).long()
        split = int(0.95 * len(tokens))
        return Text(tokens[:split], tokens[split:], context)

    def batch(self, size: int, seed: int, step: int) -> Tensor:
        """[size, context + 1] bytes at random places, a function of seed and step alone."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        start = torch.randint(len(self.train) - self.context, (size, 1), generator=generator)
        return self.train[start + torch.arange(self.context + 1)]

    def held_out_windows(self, count: int) -> Tensor:
        """[count, context + 1] bytes, spread evenly over the held-out text."""
        start = torch.linspace(0, len(self.held_out) - self.context - 1, count).long()[:, None]
        return self.held_out[start + torch.arange(self.context + 1)]


def loss_of(model: nn.Module, window: Tensor) -> Tensor:
    """Mean cross entropy, in nats per byte, of predicting each next byte of the window."""
    logits = model(window[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())


@torch.no_grad()
def generate(model: TinyLM, prompt: str, length: int, temperature: float, seed: int) -> str:
    """Continues the prompt byte by byte."""
    device = model.embedding.weight.device
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.tensor([list(prompt.encode())], device=device)
    for _ in range(length):
        logits = model(tokens[:, -model.shape.context :])[0, -1].float().cpu()
        probability = torch.softmax(logits / temperature, dim=-1)
        following = torch.multinomial(probability, 1, generator=generator)
        tokens = torch.cat((tokens, following[None].to(device)), dim=1)
    return bytes(tokens[0].tolist()).decode(errors="replace")
