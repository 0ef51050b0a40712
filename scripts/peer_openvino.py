"""OpenVINO as a peer: its attention operator and single operators, of which the faster counts."""

import numpy as np
import torch
from peer_runs import Absent, Run

try:
    import openvino
    from openvino import opset13
except ImportError as error:
    missing = str(error)
    openvino = None


def to_tensor(tensor):
    """The same memory as OpenVINO's tensor. numpy has no bfloat16, so its bits go as integers."""
    if tensor.dtype == torch.bfloat16:
        bits = tensor.view(torch.int16).numpy()
        return openvino.Tensor(bits, tensor.shape, openvino.Type.bf16)
    return openvino.Tensor(tensor.numpy(), shared_memory=True)


def to_torch(tensor, dtype):
    if dtype == torch.bfloat16:
        return torch.from_numpy(tensor.data.view(np.int16)).view(dtype)
    return torch.from_numpy(tensor.data)


class Graph:
    """A model in the making, whose inputs lie in memory as (N, L, H, d)."""

    def __init__(self, inputs):
        self.inputs = inputs
        self.parameters = []
        self.tensors = []

    def parameter(self, tensor):
        tensor = tensor.contiguous()
        fed = to_tensor(tensor)
        node = opset13.parameter(list(tensor.shape), fed.element_type)
        self.parameters.append(node)
        self.tensors.append((tensor, fed))
        return node

    def wide(self, tensor):
        node = self.parameter(tensor)
        return node if tensor.dtype == torch.float32 else opset13.convert(node, "f32")

    def head_inputs(self):
        """query, key and value, seen as (N, H, L, d)."""
        order = opset13.constant([0, 2, 1, 3])
        for name in ("query", "key", "value"):
            tensor = getattr(self.inputs, name).transpose(1, 2)
            yield opset13.transpose(self.wide(tensor), order)

    def model(self, attended):
        merged = opset13.transpose(attended, opset13.constant([0, 2, 1, 3]))
        if self.inputs.case.dtype != "float32":
            short = {"float16": "f16", "bfloat16": "bf16"}[self.inputs.case.dtype]
            merged = opset13.convert(merged, short)
        return openvino.Model([merged], self.parameters)


def attention_operator(graph):
    query, key, value = graph.head_inputs()
    case = graph.inputs.case
    scale = opset13.constant(np.float32(graph.inputs.scale))
    if graph.inputs.mask is None:
        mask = opset13.constant(np.float32(0))
    else:
        mask = graph.parameter(graph.inputs.mask)
    return opset13.scaled_dot_product_attention(query, key, value, mask, scale, causal=case.causal)


def plain_operations(graph):
    query, key, value = graph.head_inputs()
    case = graph.inputs.case
    scores = opset13.matmul(query, key, False, True)
    scores = opset13.multiply(scores, opset13.constant(np.float32(graph.inputs.scale)))
    if case.causal:
        above = np.triu(np.ones((1, 1, case.queries, case.keys), bool), 1)
        bias = np.where(above, np.float32(-1e20), np.float32(0))
        scores = opset13.add(scores, opset13.constant(bias))
    if graph.inputs.mask is not None:
        bias = graph.parameter(torch.where(graph.inputs.mask, 0.0, -1e20))
        scores = opset13.add(scores, bias)
    return opset13.matmul(opset13.softmax(scores, -1), value, False, False)


FORMS = (attention_operator, plain_operations)


class OpenVino:
    name = "openvino"

    def __init__(self):
        if openvino is None:
            raise Absent(f"{missing}; pip install openvino")
        self.version = openvino.__version__.split("-")[0]
        self.core = openvino.Core()

    def runs(self, inputs, threads):
        found = {}
        for form in () if inputs.case.trains else FORMS:
            try:
                found[form.__name__] = self._run(form, inputs, threads)
            except RuntimeError as error:
                found[form.__name__] = error
        return found

    def _run(self, form, inputs, threads):
        graph = Graph(inputs)
        model = graph.model(form(graph))
        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            # Where a processor is busy with something else, a thread tied to it waits.
            "ENABLE_CPU_PINNING": False,
        }
        request = self.core.compile_model(model, "CPU", options).create_infer_request()
        for index, (_, fed) in enumerate(graph.tensors):
            request.set_input_tensor(index, fed)
        dtype = inputs.query.dtype

        def call(_kept=graph):
            request.infer(share_outputs=True)
            return request.get_output_tensor(0)

        run = Run(call, lambda returned: to_torch(returned, dtype).transpose(1, 2))
        run.call()
        return run
