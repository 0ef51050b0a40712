"""What is compared: our op, torch's, and the optional peers, each as callables on given inputs."""

import torch
import torch.nn.functional as F
from peer_cases import Inputs

# Largest difference from float64, for results of size about 1.
TOLERANCES = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 3e-2}


class Absent(Exception):
    """A peer that this Python does not have."""


class Run:
    """A call that can be repeated, and its result as (N, H, Q, d)."""

    def __init__(self, call, result=lambda returned: returned):
        self.call = call
        self._result = result

    def error(self, expected):
        """The largest difference from `expected`; infinite where shapes differ or NaN is there."""
        result = self._result(self.call()).double()
        if result.shape != expected.shape:
            return float("inf")
        return (result - expected).abs().nan_to_num(float("inf")).max().item()


def run_of(inputs: Inputs, attention):
    """A run of an attention that gives torch's tensors, with the gradients where the case trains."""
    arguments = inputs.query, inputs.key, inputs.value, inputs.mask
    options = {"scale": inputs.scale, "is_causal": inputs.case.causal}
    if not inputs.case.trains:
        return Run(lambda: attention(*arguments, **options))
    leaves = arguments[:3]

    def step():
        output = attention(*arguments, **options)
        return output, *torch.autograd.grad(output, leaves, inputs.grad_output)

    return Run(step, lambda found: torch.cat([tensor.detach().flatten() for tensor in found]))


class Ours:
    name = "ours"

    def __init__(self):
        self.version = ""

    def runs(self, inputs: Inputs, _threads):
        return {"attention": run_of(inputs, torch.ops.self_attention.attention)}


class Torch:
    name = "torch"

    def __init__(self):
        self.version = torch.__version__

    def runs(self, inputs: Inputs, _threads):
        attention = F.scaled_dot_product_attention
        return {attention.__name__: run_of(inputs, attention)}


def load_peers(names):
    """({name: peer}, {name: why it is absent})."""
    peers, absent = {}, {}
    for name in names:
        try:
            peers[name] = load_peer(name)
        except Absent as reason:
            absent[name] = str(reason)
    return peers, absent


def load_peer(name):
    if name == "torch":
        return Torch()
    if name == "onnxruntime":
        from peer_onnxruntime import OnnxRuntime

        return OnnxRuntime()
    from peer_openvino import OpenVino

    return OpenVino()


PEERS = ("torch", "onnxruntime", "openvino")
