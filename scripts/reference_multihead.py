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


def largest_difference(record):
    """Between the case's output and torch.nn.MultiheadAttention's, with the same weights."""
    case, tensors = record.case, record.tensors
    twin = nn.MultiheadAttention(case.embed, case.heads, batch_first=True, dtype=torch.float64)
    parameters = {
        "in_proj_weight": torch.cat([tensors[f"parameter.{name}.weight"] for name in LAYERS]),
        "in_proj_bias": torch.cat([tensors[f"parameter.{name}.bias"] for name in LAYERS]),
        "out_proj.weight": tensors["parameter.output_linear.weight"],
        "out_proj.bias": tensors["parameter.output_linear.bias"],
    }
    twin.load_state_dict(parameters)
    inputs = [tensors[f"input.{name}"] for name in record.entry["arguments"].values()]
    values, keys, query = inputs if len(inputs) == 3 else inputs * 3
    dropped = None
    if "mask" in tensors:
        dropped = ~keep_mask(tensors["mask"], case.heads, inputs).flatten(0, 1)
    with torch.no_grad():
        output, _ = twin(query, keys, values, attn_mask=dropped, need_weights=True)
    return (output - tensors["output"]).abs().max().item()
