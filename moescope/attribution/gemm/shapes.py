"""FLOPs and bytes of a matrix operation from the shapes that the profiler recorded.

A product of [M, K] and [K, N] is 2 M N K FLOPs. Bytes are those that must cross memory once: both operands, the
result, and a matrix addend. Grouped products are counted by their total rows, whatever the split over the groups.
Attention is its two products (forward) or five (backward, which repeats the first); with a causal mask half of
each is counted. A convolution is the product of its output positions with its unfolded weight.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

ITEM_BYTES = {
    "c10::BFloat16": 2, "c10::Half": 2, "float": 4, "double": 8, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
    "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2fnuz": 1, "signed char": 1, "unsigned char": 1, "int": 4,
}  # fmt: skip
"""Bytes of an element by the profiler's name of its type."""

DTYPE = {
    "c10::BFloat16": "bfloat16", "c10::Half": "float16", "float": "float32", "double": "float64",
    "signed char": "int8", "unsigned char": "uint8", "int": "int32",
}  # fmt: skip
"""Names of element types as torch spells them; the kinds of float8 are one."""

RESULT_BYTES_OF_8_BIT = 2
"""Products of 8-bit operands are written in 16 bits unless asked otherwise."""

_FORWARD = r"^(?!.*(?:Backward|evaluate_function)).*"
GROUPED_ELSEWHERE = re.compile(
    _FORWARD + r"(?:group(?:ed)?_?(?:\w+_)?gemm|grouped_?(?:mm|linear)|::gmm$|cutlass_moe_mm|ck_grouped)", re.I
)
"""Grouped products elsewhere: the ``grouped_gemm`` package, Transformer Engine, FBGEMM, CUTLASS, CK, DeepGEMM."""
SINGLE_ELSEWHERE = re.compile(
    _FORWARD + r"(?:(?:fp8|bf16|a8w8|int8|w8a8|blockwise|scaled)_?gemm|gemm_a\d+w\d+|scaled_mm|hipb_mm|::gemm_\w+$"
    r"|^_(?:LayerNorm)?Linear$)",
    re.I,
)
"""Single products elsewhere: DeepGEMM, vLLM's and SGLang's CUTLASS, AITER's CK and hipBLASLt, Transformer Engine."""

Dims = Sequence[Any]


@dataclass(frozen=True, slots=True)
class MatrixOp:
    """One operation by its shape.

    ``m, n, k``: rows and columns of the result and the length of the sum. Of a grouped product the dimension that is
    divided among the ``groups`` counts whole; of a batched one ``m, n, k`` are those of each of ``groups`` products;
    of attention ``m, n`` are query and key positions, ``k`` the width of a head and ``groups`` heads times batch.
    ``rows``: rows per group: tokens per expert of a grouped product, whichever dimension holds them.
    """

    kind: str
    """``gemm``, ``batched``, ``grouped``, ``attention`` or ``convolution``."""
    m: int
    n: int
    k: int
    groups: int
    rows: float
    flops: int
    bytes: int
    dtype: str
    divided: str = ""
    """``m``, ``n`` or ``k``: the dimension that a grouped product divides among its groups."""


MOST_OF_ONE_PRODUCT = 1 << 53
"""FLOPs or bytes, hours on any device: shapes that claim more are wrong, and sums of them would not fit 64 bits."""


class UnknownShapeError(Exception):
    """The recorded shapes do not say what the operation computes."""


def matrix_op(name: str, dims_text: str, types_text: str | None, concrete_text: str | None) -> MatrixOp | None:
    """The cost of one operation, None where its name is no matrix operation or its shapes do not tell.

    The texts are the profiler's ``Input Dims``, ``Input type`` and ``Concrete Inputs`` as JSON.
    """
    parse = _parser(name)
    if parse is None:
        return None
    try:
        dims, types, concrete = (json.loads(text) if text else [] for text in (dims_text, types_text, concrete_text))
        if not isinstance(dims, list) or not isinstance(types, list) or not isinstance(concrete, list):
            return None
        found = parse(dims, types, concrete)
        return found if max(found.flops, found.bytes) <= MOST_OF_ONE_PRODUCT else None
    except (UnknownShapeError, ValueError, TypeError, IndexError):
        return None


def is_matrix_op(name: str) -> bool:
    """Whether operations of this name are counted."""
    return _parser(name) is not None


def _parser(name: str) -> Callable[[Dims, Sequence[str], Dims], MatrixOp] | None:
    known = PARSERS.get(name.removeprefix("aten::"))
    if known is None and GROUPED_ELSEWHERE.search(name):
        return _grouped_by_arguments
    if known is None and SINGLE_ELSEWHERE.search(name):
        return _single_by_arguments(name.startswith("_C::"), name == "_Linear")
    return known


def _shape(dims: Dims, index: int, *lengths: int) -> list[int]:
    shape = dims[index]
    if (
        not isinstance(shape, list)
        or len(shape) not in lengths
        or not all(isinstance(size, int) and size >= 0 for size in shape)
    ):
        raise UnknownShapeError
    return shape


def _item(types: Sequence[str], index: int) -> int:
    name = types[index] if index < len(types) else ""
    if name not in ITEM_BYTES:
        raise UnknownShapeError
    return ITEM_BYTES[name]


def _dtype(types: Sequence[str], index: int) -> str:
    name = types[index]
    return "float8" if "Float8" in name else DTYPE.get(name, name)


def _result(item: int) -> int:
    return RESULT_BYTES_OF_8_BIT if item == 1 else item


def _product(
    kind: str, sizes: tuple[int, int, int, int], types: Sequence[str], first: int, extra_bytes: int = 0
) -> MatrixOp:
    """``sizes``: groups, m, n, k of one product of ``groups``; the operands are ``first`` and the next."""
    groups, m, n, k = sizes
    left, right = _item(types, first), _item(types, first + 1)
    moved = groups * (m * k * left + k * n * right + m * n * _result(left)) + extra_bytes
    return MatrixOp(kind, m, n, k, groups, m, 2 * groups * m * n * k, moved, _dtype(types, first))


def _mm(first: int) -> Callable[[Dims, Sequence[str], Dims], MatrixOp]:
    def parse(dims: Dims, types: Sequence[str], concrete: Dims) -> MatrixOp:  # noqa: ARG001
        (m, k), (k2, n) = _shape(dims, first, 2), _shape(dims, first + 1, 2)
        if k != k2:
            raise UnknownShapeError
        return _product("gemm", (1, m, n, k), types, first, _addend(dims, types, first))

    return parse


def _bmm(first: int) -> Callable[[Dims, Sequence[str], Dims], MatrixOp]:
    def parse(dims: Dims, types: Sequence[str], concrete: Dims) -> MatrixOp:  # noqa: ARG001
        (b, m, k), (b2, k2, n) = _shape(dims, first, 3), _shape(dims, first + 1, 3)
        if b != b2 or k != k2:
            raise UnknownShapeError
        return _product("batched", (b, m, n, k), types, first, _addend(dims, types, first))

    return parse


def _addend(dims: Dims, types: Sequence[str], first: int) -> int:
    """Bytes of the matrix that is added, where there is one."""
    return prod(dims[0]) * _item(types, 0) if first == 1 and len(dims[0]) > 1 else 0


def _linear(dims: Dims, types: Sequence[str], concrete: Dims) -> MatrixOp:  # noqa: ARG001
    x, (n, k) = dims[0], _shape(dims, 1, 2)
    if not x or x[-1] != k:
        raise UnknownShapeError
    return _product("gemm", (1, prod(x[:-1]), n, k), types, 0)


def _matmul(dims: Dims, types: Sequence[str], concrete: Dims) -> MatrixOp:  # noqa: ARG001
    left, right = list(dims[0]), list(dims[1])
    left = [1, *left] if len(left) == 1 else left
    right = [*right, 1] if len(right) == 1 else right
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
        raise UnknownShapeError
    if len(right) == 2:  # all leading dimensions are rows of one product
        return _product("gemm", (1, prod(left[:-1]), right[1], right[0]), types, 0)
    batch = _broadcast(left[:-2], right[:-2])
    return _product("batched", (prod(batch), left[-2], right[-1], left[-1]), types, 0)


def _broadcast(left: list[int], right: list[int]) -> list[int]:
    length = max(len(left), len(right))
    padded = [[1] * (length - len(shape)) + shape for shape in (left, right)]
    if any(a != b and 1 not in (a, b) for a, b in zip(*padded, strict=True)):
        raise UnknownShapeError
    return [max(pair) for pair in zip(*padded, strict=True)]


def _grouped(dims: Dims, types: Sequence[str], concrete: Dims) -> MatrixOp:  # noqa: ARG001
    left, right = _shape(dims, 0, 2, 3), _shape(dims, 1, 2, 3)
    if left[-1] != right[-2]:
        raise UnknownShapeError
    m, k, n = left[-2], left[-1], right[-1]
    a, b = _item(types, 0), _item(types, 1)
    if len(left) == 3 and len(right) == 3:
        return _product("grouped", (left[0], m, n, k), types, 0)
    groups = right[0] if len(right) == 3 else left[0] if len(left) == 3 else _num_offsets(dims)
    divided = "m" if len(right) == 3 else "n" if len(left) == 3 else "k"
    rows = {"m": m, "n": n, "k": k}[divided] / max(groups, 1)
    left_bytes = prod(left) * a
    result = (groups if len(left) == len(right) == 2 else 1) * m * n * _result(a)
    moved = left_bytes + prod(right) * b + result
    return MatrixOp("grouped", m, n, k, groups, rows, 2 * m * n * k, moved, _dtype(types, 0), divided)


def _grouped_by_arguments(dims: Dims, types: Sequence[str], concrete: Dims) -> MatrixOp:  # noqa: ARG001
    """Grouped products of other libraries: rows [R, K], and weights as one [E, K, N] or [E, N, K] or as E matrices."""
    matrices = [(at, shape) for at, shape in enumerate(dims) if isinstance(shape, list) and len(shape) == 2]
    stacks = [(at, shape) for at, shape in enumerate(dims) if isinstance(shape, list) and len(shape) == 3]
    if not matrices:
        raise UnknownShapeError
    (first, (m, k)), others = matrices[0], matrices[1:]
    if stacks:
        at, (groups, *sides) = stacks[0]
    else:
        same = [entry for entry in others if entry[1] == others[0][1]]
        if len(same) < 2:
            raise UnknownShapeError
        (at, sides), groups = same[0], len(same)
    if k not in sides:
        raise UnknownShapeError
    n = sides[1] if sides[0] == k else sides[0]
    item, weight = _item(types, first), _item(types, at)
    moved = m * k * item + groups * k * n * weight + m * n * _result(item)
    return MatrixOp("grouped", m, n, k, groups, m / groups, 2 * m * n * k, moved, _dtype(types, first), "m")


def _single_by_arguments(result_first: bool, weight_first: bool) -> Callable[[Dims, Sequence[str], Dims], MatrixOp]:
    """Products of other libraries: rows [..., K] and a weight [K, N] or [N, K], with the result [..., N] among the
    arguments or not. Scales and biases have other shapes; where pairs differ in their FLOPs, the shapes do not tell."""

    def parse(dims: Dims, types: Sequence[str], concrete: Dims) -> MatrixOp:  # noqa: ARG001
        tensors = [(at, shape) for at, shape in enumerate(dims) if _is_matrix(shape)]
        results = {(prod(shape[:-1]), shape[-1]) for _, shape in tensors}
        tensors = tensors[1:] if result_first else tensors
        found = [
            (at, other, prod(x[:-1]), weight[0] if weight[1] == x[-1] else weight[1], x[-1])
            for at, x in tensors
            for other, weight in tensors
            if at != other and len(weight) == 2 and x[-1] in weight and min(weight) > 1
        ]
        exact = [entry for entry in found if (entry[2], entry[3]) in results]
        found = exact if exact and len(tensors) > 2 else found
        if len({prod(entry[2:]) for entry in found}) != 1:
            raise UnknownShapeError
        at, other, m, n, k = max(found) if weight_first else min(found)
        left, right = _item(types, at), _item(types, other)
        moved = m * k * left + k * n * right + m * n * _result(left)
        return MatrixOp("gemm", m, n, k, 1, m, 2 * m * n * k, moved, _dtype(types, at))

    return parse


def _is_matrix(shape: object) -> bool:
    return isinstance(shape, list) and len(shape) >= 2 and all(isinstance(size, int) for size in shape)


def _num_offsets(dims: Dims) -> int:
    """Number of groups: the length of the offsets, the last of the one-dimensional arguments."""
    lengths = [shape[0] for shape in dims[2:] if isinstance(shape, list) and len(shape) == 1]
    if not lengths:
        raise UnknownShapeError
    return int(lengths[-1])


def _attention(
    first: int, num_products: int, causal_at: int | None, *, heads_last: bool = False
) -> Callable[[Dims, Sequence[str], Dims], MatrixOp]:
    """``heads_last``: [batch, positions, heads, width] instead of [batch, heads, positions, width]."""

    def parse(dims: Dims, types: Sequence[str], concrete: Dims) -> MatrixOp:
        q, k, v = (_shape(dims, first + i, 4) for i in range(3))
        if heads_last:
            q, k, v = ([shape[0], shape[2], shape[1], shape[3]] for shape in (q, k, v))
        heads, m, width = q[0] * q[1], q[2], q[3]
        n, out = k[2], v[3]
        flops = heads * m * n * 2 * _count(num_products, width, out)
        flag = concrete[causal_at] if causal_at is not None and causal_at < len(concrete) else ""
        flops = flops // 2 if str(flag).lower() in ("true", "1") else flops
        item = _item(types, first)
        read = prod(q) + prod(k) + prod(v)
        moved = (read + heads * m * out if num_products == 2 else 2 * (read + heads * m * out)) * item
        return MatrixOp("attention", m, n, width, heads, m, flops, moved, _dtype(types, first))

    return parse


def _count(num_products: int, width: int, out: int) -> int:
    """Sum over the products of their inner length: scores use the head's width, values the output's."""
    return width + out if num_products == 2 else 3 * width + 2 * out


def _numbers(value: object, count: int) -> list[int]:
    """A list argument such as ``[2, 2]``; a single number stands for all."""
    found = [int(text) for text in re.findall(r"-?\d+", str(value))]
    if len(found) == 1:
        found *= count
    if len(found) != count:
        raise UnknownShapeError
    return found


def _convolution(padding_first: bool) -> Callable[[Dims, Sequence[str], Dims], MatrixOp]:
    def parse(dims: Dims, types: Sequence[str], concrete: Dims) -> MatrixOp:
        x, weight = _shape(dims, 0, 3, 4, 5), _shape(dims, 1, 3, 4, 5)
        space = len(weight) - 2
        if len(x) != len(weight):
            raise UnknownShapeError
        stride, padding = concrete[3], concrete[4]
        if padding_first:
            stride, padding = padding, stride
        steps, pads = _numbers(stride, space), _numbers(padding, space)
        gaps = _numbers(concrete[5], space)
        if len(concrete) > 6 and str(concrete[6]).lower() == "true":  # transposed
            raise UnknownShapeError
        size = [(x[2 + i] + 2 * pads[i] - gaps[i] * (weight[2 + i] - 1) - 1) // steps[i] + 1 for i in range(space)]
        return _unfolded(x, weight, [x[0], weight[0], *size], types, num_products=1)

    return parse


def _convolution_backward(dims: Dims, types: Sequence[str], concrete: Dims) -> MatrixOp:
    grad, x, weight = (_shape(dims, i, 3, 4, 5) for i in range(3))
    mask = re.findall(r"true|false", str(concrete[10]).lower())
    if len(mask) != 3 or str(concrete[7]).lower() == "true":
        raise UnknownShapeError
    return _unfolded(x, weight, grad, types, num_products=mask[:2].count("true"))


def _unfolded(x: list[int], weight: list[int], y: list[int], types: Sequence[str], *, num_products: int) -> MatrixOp:
    m, n, k = y[0] * prod(y[2:]), y[1], prod(weight[1:])
    item = _item(types, 0)
    moved = (prod(x) + prod(weight) + prod(y)) * item * max(num_products, 1)
    return MatrixOp("convolution", m, n, k, 1, m, 2 * m * n * k * num_products, moved, _dtype(types, 0))


PARSERS: dict[str, Callable[[Dims, Sequence[str], Dims], MatrixOp]] = {
    "mm": _mm(0), "addmm": _mm(1), "addmm_": _mm(1), "_addmm_activation": _mm(1), "_int_mm": _mm(0),
    "_scaled_mm": _mm(0), "bmm": _bmm(0), "baddbmm": _bmm(1), "linear": _linear, "matmul": _matmul,
    "_grouped_mm": _grouped, "_scaled_grouped_mm": _grouped,
    "_scaled_mm_v2": _mm(0), "_scaled_grouped_mm_v2": _grouped,
    "scaled_dot_product_attention": _attention(0, 2, 5),
    "_scaled_dot_product_attention_math": _attention(0, 2, 5),
    "_scaled_dot_product_flash_attention": _attention(0, 2, 4),
    "_scaled_dot_product_flash_attention_for_cpu": _attention(0, 2, 4),
    "_scaled_dot_product_efficient_attention": _attention(0, 2, 6),
    "_scaled_dot_product_cudnn_attention": _attention(0, 2, 6),
    "_scaled_dot_product_fused_attention_overrideable": _attention(0, 2, 5),
    "flash_attn::_flash_attn_forward": _attention(0, 2, 5, heads_last=True),
    "flash_attn::_flash_attn_backward": _attention(1, 5, 11, heads_last=True),
    "_scaled_dot_product_flash_attention_backward": _attention(1, 5, 11),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention(1, 5, 7),
    "_scaled_dot_product_efficient_attention_backward": _attention(1, 5, 11),
    "_scaled_dot_product_cudnn_attention_backward": _attention(1, 5, 14),
    "conv1d": _convolution(False), "conv2d": _convolution(False), "conv3d": _convolution(False),
    "convolution": _convolution(False), "_convolution": _convolution(False),
    "miopen_convolution": _convolution(True), "mkldnn_convolution": _convolution(True),
    "convolution_backward": _convolution_backward,
}  # fmt: skip
"""Parsers by operation; the outermost of nested ones is counted, so wrappers and what they call may both be here."""
