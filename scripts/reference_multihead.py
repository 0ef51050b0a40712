"""FullProjectionAttention against torch.nn.MultiheadAttention: one formula, other code."""

import torch
from torch import nn

TOLERANCE = 1e-13  # largest absolute difference in float64
LAYERS = ("q_linear", "k_linear", "v_linear")


def comparable(record):
    """Whether torch's module defines the case's result.

    It says NaN for a row without a key, and has no finite fill that a score could lie below.
    """
    case, tensors = record.case, record.tensors
    if case.dtype != "float64" or "output" not in tensors or case.kind == "below_fill":
        return False
    output, mask = tensors["output"], tensors.get("mask")
    if output.numel() == 0 or not torch.isfinite(output).all():
        return False
    inputs = [tensors[f"input.{name}"] for name in record.entry["arguments"].values()]
    if not all(tensor.numel() and torch.isfinite(tensor).all() for tensor in inputs):
        return False
    return mask is None or bool(keep_mask(mask, case.heads, inputs).any(-1).all())


def keep_mask(mask, heads, inputs):
    """(N, H, Q, K), True where a score is kept."""
    batch, queries, keys = inputs[0].shape[0], inputs[-1].shape[1], inputs[0].shape[1]
    return (mask != 0).expand(batch, heads, queries, keys)


def multihead_twin(embed, heads, state):
    """torch.nn.MultiheadAttention with the weights of a FullProjectionAttention's state dict."""
    dtype = state["output_linear.bias"].dtype
    twin = nn.MultiheadAttention(embed, heads, batch_first=True, dtype=dtype)
    twin.load_state_dict(
        {
            "in_proj_weight": torch.cat([state[f"{name}.weight"] for name in LAYERS]),
            "in_proj_bias": torch.cat([state[f"{name}.bias"] for name in LAYERS]),
            "out_proj.weight": state["output_linear.weight"],
            "out_proj.bias": state["output_linear.bias"],
        }
    )
    return twin


def largest_difference(record):
    """Between the case's output and torch.nn.MultiheadAttention's, with the same weights."""
    case, tensors = record.case, record.tensors
    prefix = "parameter."
    state = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
    twin = multihead_twin(case.embed, case.heads, state)
    inputs = [tensors[f"input.{name}"] for name in record.entry["arguments"].values()]
    values, keys, query = inputs if len(inputs) == 3 else inputs * 3
    dropped = None
    if "mask" in tensors:
        dropped = ~keep_mask(tensors["mask"], case.heads, inputs).flatten(0, 1)
    with torch.no_grad():
        output, _ = twin(query, keys, values, attn_mask=dropped, need_weights=True)
    return (output - tensors["output"]).abs().max().item()
