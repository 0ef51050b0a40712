"""ONNX Runtime as a peer: three ways to write attention as a graph, of which the fastest counts."""

import numpy as np
import torch
from peer_runs import Absent, Run

try:
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper
except ImportError as error:
    missing = str(error)
    onnxruntime = None

OPSET = 23
# Of the intermediate representation: old enough for every ONNX Runtime that has the opset.
IR_VERSION = 11


class Graph:
    """A model in the making. Inputs and output have the case's dtype; between, all is float32,
    which is what ONNX Runtime computes in on a CPU."""

    def __init__(self, inputs):
        self.inputs = inputs
        self.case = inputs.case
        self.nodes = []
        self.constants = []
        self.feeds = {}

    def node(self, op, arguments, domain="", **attributes):
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, arguments, [name], domain=domain, **attributes))
        return name

    def constant(self, array):
        name = f"constant_{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        return name

    def feed(self, name, tensor, shape):
        """An input of that shape, with the memory of `tensor`; its name as float32."""
        self.feeds[name] = tensor.reshape(shape)
        if self.case.dtype == "float32":
            return name
        return self.node("Cast", [name], to=TensorProto.FLOAT)

    def bias(self):
        """What is added to scores: an input for a mask, a constant for causality, or None."""
        case = self.case
        if case.causal:
            above = np.triu(np.ones((case.queries, case.keys), bool), 1)
            return self.constant(np.where(above, np.float32(-1e20), np.float32(0)))
        if self.inputs.mask is None:
            return None
        self.feeds["bias"] = torch.where(self.inputs.mask, 0.0, -1e20)
        return "bias"

    def model(self, output, shape):
        if self.case.dtype != "float32":
            output = self.node("Cast", [output], to=onnx_type(self.case.dtype))
        values = [
            helper.make_tensor_value_info(name, onnx_type(str(t.dtype)[6:]), t.shape)
            for name, t in self.feeds.items()
        ]
        result = helper.make_tensor_value_info(output, onnx_type(self.case.dtype), shape)
        graph = helper.make_graph(self.nodes, "attention", values, [result], self.constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def onnx_type(dtype):
    names = {"float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16", "int32": "INT32"}
    return getattr(TensorProto, names[dtype])


def packed(graph):
    """query, key and value as (N, L, H·d)."""
    case = graph.case
    for name in ("query", "key", "value"):
        tensor = getattr(graph.inputs, name).transpose(1, 2)
        yield graph.feed(name, tensor, (case.batch, -1, case.heads * case.head_dim))


def multi_head_attention(graph):
    """ONNX Runtime's own operator."""
    case = graph.case
    arguments = list(packed(graph))
    if graph.inputs.mask is not None:
        graph.feeds["mask"] = graph.inputs.mask.reshape(case.batch, case.keys).int()
        arguments += ["", "mask"]
    return graph.node(
        "MultiHeadAttention",
        arguments,
        domain="com.microsoft",
        num_heads=case.heads,
        scale=graph.inputs.scale,
        unidirectional=int(case.causal),
    )


def standard_attention(graph):
    """The operator of ONNX."""
    case = graph.case
    arguments = list(packed(graph))
    if graph.inputs.mask is not None:
        arguments.append(graph.bias())
    heads = {"q_num_heads": case.heads, "kv_num_heads": case.heads}
    options = {"scale": graph.inputs.scale, "is_causal": int(case.causal)}
    return graph.node("Attention", arguments, **heads, **options)


def plain_operations(graph):
    """Products, softmax and transpositions one by one."""
    case = graph.case
    seen = []
    for name, order in (("query", (0, 2, 1, 3)), ("key", (0, 2, 3, 1)), ("value", (0, 2, 1, 3))):
        tensor = getattr(graph.inputs, name).transpose(1, 2)
        fed = graph.feed(name, tensor, tensor.shape)
        seen.append(graph.node("Transpose", [fed], perm=order))
    scores = graph.node("MatMul", seen[:2])
    scores = graph.node("Mul", [scores, graph.constant(np.float32(graph.inputs.scale))])
    bias = graph.bias()
    if bias is not None:
        scores = graph.node("Add", [scores, bias])
    weights = graph.node("Softmax", [scores], axis=-1)
    product = graph.node("MatMul", [weights, seen[2]])
    merged = graph.node("Transpose", [product], perm=(0, 2, 1, 3))
    shape = np.array([case.batch, case.queries, case.heads * case.head_dim], np.int64)
    return graph.node("Reshape", [merged, graph.constant(shape)])


FORMS = (multi_head_attention, standard_attention, plain_operations)


class OnnxRuntime:
    name = "onnxruntime"

    def __init__(self):
        if onnxruntime is None:
            raise Absent(f"{missing}; pip install onnx onnxruntime")
        self.version = onnxruntime.__version__
        onnxruntime.set_default_logger_severity(4)

    def runs(self, inputs, threads):
        found = {}
        for form in () if inputs.case.trains else FORMS:
            try:
                found[form.__name__] = self._run(form, inputs, threads)
            except Exception as error:  # the package has a class of its own for each status
                found[form.__name__] = error
        return found

    def _run(self, form, inputs, threads):
        case = inputs.case
        graph = Graph(inputs)
        shape = (case.batch, case.queries, case.heads * case.head_dim)
        model = graph.model(form(graph), shape)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        binding = session.io_binding()
        output = torch.empty(shape, dtype=getattr(torch, case.dtype))
        # Bound by address, so that nothing is copied and bfloat16 needs no numpy type.
        tensors = {name: tensor.contiguous() for name, tensor in graph.feeds.items()}
        for name, tensor in tensors.items():
            kind = onnx_type(str(tensor.dtype)[6:])
            binding.bind_input(name, "cpu", 0, kind, tensor.shape, tensor.data_ptr())
        name = session.get_outputs()[0].name
        kind = onnx_type(case.dtype)
        binding.bind_output(name, "cpu", 0, kind, output.shape, output.data_ptr())

        def call(_kept=tensors):
            session.run_with_iobinding(binding)
            return output

        split = (case.batch, case.queries, case.heads, case.head_dim)
        run = Run(call, lambda returned: returned.view(split).transpose(1, 2))
        run.call()
        return run
