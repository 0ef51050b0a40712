"""Whole modules as peers: ours, the Python class, its algebra on torch's attention, and others."""

import math

import torch
import torch.nn.functional as F
from peer_module_cases import ModuleInputs, flat
from peer_runs import Run
from reference_multihead import multihead_twin


def call(module, inputs: ModuleInputs):
    return module(inputs.values, inputs.values, inputs.query, inputs.mask)


class OurModule:
    name = "ours"

    def runs(self, inputs: ModuleInputs, _threads):
        op = getattr(torch.ops.self_attention, f"{inputs.case.variant}_attention")
        case = inputs.case
        mask = None if case.causal else inputs.mask
        arguments = (inputs.values, inputs.values, inputs.query, mask, *inputs.parameters)
        call = lambda: inputs.step(op(*arguments, case.heads, is_causal=case.causal))  # noqa: E731
        return {"attention": Run(call, flat)}


class Original:
    """The Python class, which is the public one operation by operation."""

    name = "original"
    version = ""

    def runs(self, inputs: ModuleInputs, _threads):
        return {"eager": Run(lambda: inputs.step(call(inputs.module, inputs)), flat)}


class Compiled:
    """torch.compile of the class, for each case anew."""

    name = "compiled"
    version = ""

    def runs(self, inputs: ModuleInputs, _threads):
        torch._dynamo.reset()
        try:
            compiled = torch.compile(inputs.module, dynamic=False)
            call(compiled, inputs)
        except Exception as error:  # whatever the compiler behind it says
            return {"torch.compile": error}
        return {"torch.compile": Run(lambda: inputs.step(call(compiled, inputs)), flat)}


class Algebra:
    """Heads that share their matrices need no projected keys and values: torch's attention on
    q W_q^T W_k, and W_v after the sum or as part of fc_out."""

    name = "algebra"
    version = ""

    def runs(self, inputs: ModuleInputs, _threads):
        if inputs.case.variant != "shared_projection" or inputs.case.trains:
            return {}
        return {
            "W_v after the sum": Run(lambda: self.after_sum(inputs)),
            "W_v in fc_out": Run(lambda: self.in_output(inputs)),
        }

    def attended(self, inputs: ModuleInputs):
        """(N, Q, H, d)."""
        _, keys, queries, *_ = inputs.parameters
        heads = inputs.case.heads
        raw = inputs.values.unflatten(-1, (heads, -1)).transpose(1, 2)
        query = (inputs.query.unflatten(-1, (heads, -1)) @ (queries.mT @ keys)).transpose(1, 2)
        scale = 1 / math.sqrt(inputs.case.embed)
        attended = F.scaled_dot_product_attention(query, raw, raw, inputs.mask, scale=scale)
        return attended.transpose(1, 2)

    def after_sum(self, inputs: ModuleInputs):
        values, _, _, weight, bias = inputs.parameters
        return F.linear((self.attended(inputs) @ values.mT).flatten(2), weight, bias)

    def in_output(self, inputs: ModuleInputs):
        values, _, _, weight, bias = inputs.parameters
        weight = (weight.unflatten(1, (inputs.case.heads, -1)) @ values).flatten(1)
        return F.linear(self.attended(inputs).flatten(2), weight, bias)


class Multihead:
    """torch.nn.MultiheadAttention with the same weights, as it is used for inference."""

    name = "multihead"
    version = ""

    def runs(self, inputs: ModuleInputs, _threads):
        case = inputs.case
        if case.variant != "full_projection":
            return {}
        state = inputs.module.state_dict()
        twin = multihead_twin(case.embed, case.heads, state).eval()
        dropped = None if inputs.mask is None else ~inputs.mask[:, 0, 0]
        x = inputs.values
        return {
            "eval": Run(
                lambda: twin(inputs.query, x, x, key_padding_mask=dropped, need_weights=False)[0]
            )
        }


PEERS = {peer.name: peer for peer in (Original, Algebra, Compiled, Multihead)}


def load_peers(names):
    """({name: peer}, {name: why it is absent}): all come with torch."""
    return {name: PEERS[name]() for name in names}, {}
