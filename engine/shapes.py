"""Shape rules that ops of both dialects share."""

from __future__ import annotations

from math import prod

from engine.op import require, same_shape
from engine.snapshot import OpRecord


def verify_elementwise(op: OpRecord) -> None:
    """Every operand and the result have one shape."""
    for index, type_ in enumerate(op.operand_types):
        same_shape(f"operand {index}", type_, op.result_types[0].shape)


def verify_matmul(op: OpRecord) -> None:
    """left [..., M, K] x right [K, N] (or [N, K] with right_transpose) -> [..., M, N]; bias [N]."""
    left, right, bias = op.operand_types[:3]
    output = op.result_types[0]
    require(len(left.shape) >= 2, f"left has shape {list(left.shape)}, expected at least two dimensions")
    require(len(right.shape) == 2, f"right has shape {list(right.shape)}, expected two dimensions")
    k, n = right.shape if not op.attributes["right_transpose"] else right.shape[::-1]
    require(left.shape[-1] == k, f"left has {left.shape[-1]} columns, right expects K = {k}")
    same_shape("output", output, (*left.shape[:-1], n))
    if not bias.is_none:
        require(bias.elements == n, f"bias has {bias.elements} elements, expected N = {n}")


def verify_rms_norm(op: OpRecord) -> None:
    """input [..., C], gamma with C elements -> same shape as input."""
    x, gamma = op.operand_types
    require(gamma.elements == x.shape[-1], f"gamma has {gamma.elements} elements, expected {x.shape[-1]}")
    same_shape("output", op.result_types[0], x.shape)


def verify_gather(op: OpRecord) -> None:
    """table [rows, ...], indices [a, b] -> [a, b, ...]."""
    table, indices = op.operand_types[:2]
    require(indices.dtype == "si32", f"indices are {indices.dtype}, expected si32")
    same_shape("output", op.result_types[0], (*indices.shape, *table.shape[1:]))


def verify_rope(op: OpRecord) -> None:
    """input [1, L, heads, d]; sin, cos [1, L, 1, d] -> same shape as input."""
    x, sin, cos = op.operand_types
    require(len(x.shape) == 4, f"input has shape {list(x.shape)}, expected [1, L, heads, d]")
    require(x.shape[3] % 2 == 0, f"head size {x.shape[3]} is odd")
    for name, table in (("sin", sin), ("cos", cos)):
        same_shape(name, table, (x.shape[0], x.shape[1], 1, x.shape[3]))
    same_shape("output", op.result_types[0], x.shape)
    mode = op.attributes["rope_mode"]
    require(mode in ("contiguous_halves", "interleaved_pairs"), f"rope_mode {mode!r} is unknown")


def verify_attention(op: OpRecord) -> None:
    """q [1, mq, q_head, d], k and v [1, mk, kv_head, d] -> [1, mq, q_head * d]; mask and history length optional."""
    q, k, v, mask, history = op.operand_types
    a = op.attributes
    batch, mq, mk, heads, kv_heads, d = (a[n] for n in ("batch", "mq", "mk", "q_head", "kv_head", "dim"))
    require(heads % kv_heads == 0, f"q_head {heads} is not a multiple of kv_head {kv_heads}")
    same_shape("queries", q, (batch, mq, heads, d))
    same_shape("keys", k, (batch, mk, kv_heads, d))
    same_shape("values", v, (batch, mk, kv_heads, d))
    same_shape("output", op.result_types[0], (batch, mq, heads * d))
    if a["mask_size"]:
        same_shape("mask", mask, (a["mask_size"], a["mask_size"]))
        require(mk >= mq, f"mk {mk} is smaller than mq {mq}: the causal mask needs every query's own key")
    elif not mask.is_none:
        same_shape("mask", mask, (batch, 1, mq, mk))
    if not history.is_none:
        require(history.elements == 1 and history.dtype == "si32", "history_length must be one si32")
        require(a["mask_size"] > 0, "history_length needs the small causal mask")


def verify_reshape(op: OpRecord) -> None:
    """Same number of elements."""
    found, made = op.operand_types[0].elements, op.result_types[0].elements
    require(found == made, f"output has {made} elements, the input has {found}")


def verify_concat(op: OpRecord) -> None:
    """Operands differ only along `axis`; the output's length there is their sum."""
    axis = op.attributes["axis"]
    first = op.operand_types[0].shape
    require(0 <= axis < len(first), f"axis {axis} is outside of 0..{len(first) - 1}")
    total = 0
    for index, type_ in enumerate(op.operand_types):
        same_shape(f"operand {index}", type_, (*first[:axis], type_.shape[axis], *first[axis + 1 :]))
        total += type_.shape[axis]
    same_shape("output", op.result_types[0], (*first[:axis], total, *first[axis + 1 :]))


def verify_top_k(op: OpRecord) -> None:
    """logits [1, V] -> indices [1, K] si32."""
    logits, output = op.operand_types[0], op.result_types[0]
    k = op.attributes["K"]
    require(1 <= k <= logits.shape[-1], f"K = {k} is outside of 1..{logits.shape[-1]}")
    same_shape("output", output, (*logits.shape[:-1], k))
    require(output.dtype == "si32", f"output is {output.dtype}, expected si32")


def verify_sample(op: OpRecord) -> None:
    """logits [1, V], ids [1, S], four scalars -> probabilities and tokens [1, count], count at most V."""
    probabilities, tokens = op.result_types
    require(prod(probabilities.shape) <= prod(op.operand_types[0].shape), "more candidates than logits")
    same_shape("tokens", tokens, probabilities.shape)
