"""Requests to a server of the v2 protocol, by the package tritonclient: in JSON or in binary."""

import importlib
import sys
import uuid

import torch

# The server's name of a dtype.
DATATYPES = {torch.float32: "FP32", torch.float64: "FP64", torch.float16: "FP16", torch.bool: "BOOL"}


def use_modules(folder):
    """The folder that has tritonclient; what this Python has itself comes first."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


class PlainRequest:
    """Tensors that travel in what is sent."""

    def __init__(self, api, tensors, choice):
        self.inputs = make_inputs(api, tensors)
        for one, tensor in zip(self.inputs, tensors.values()):
            one.set_data_from_numpy(tensor.numpy(), **choice)
        self.outputs = [api.InferRequestedOutput("OUTPUT__0", **choice)]

    def output(self, result):
        return torch.from_numpy(result.as_numpy("OUTPUT__0").copy())

    def finish(self):
        pass


class SharedRequest:
    """Tensors in memory that the server maps too."""

    def __init__(self, api, client, tensors):
        self._memory = importlib.import_module("tritonclient.utils.shared_memory")
        self._client, self._name = client, f"client_{uuid.uuid4().hex}"
        self._like = list(tensors.values())[min(2, len(tensors) - 1)]  # the query, and so the output
        sizes = [tensor.nbytes for tensor in (*tensors.values(), self._like)]
        self._region = self._memory.create_shared_memory_region(self._name, f"/{self._name}", sum(sizes))
        client.register_system_shared_memory(self._name, f"/{self._name}", sum(sizes))
        self.inputs, self._offset = make_inputs(api, tensors), 0
        for one, tensor, size in zip(self.inputs, tensors.values(), sizes):
            self._memory.set_shared_memory_region(self._region, [tensor.numpy()], offset=self._offset)
            one.set_shared_memory(self._name, size, offset=self._offset)
            self._offset += size
        self.outputs = [api.InferRequestedOutput("OUTPUT__0")]
        self.outputs[0].set_shared_memory(self._name, sizes[-1], offset=self._offset)

    def output(self, result):
        like = self._like.numpy()
        shape = result.get_output("OUTPUT__0")["shape"]
        found = self._memory.get_contents_as_numpy(self._region, like.dtype, shape, offset=self._offset)
        return torch.from_numpy(found.copy())

    def finish(self):
        self._client.unregister_system_shared_memory(self._name)
        self._memory.destroy_shared_memory_region(self._region)


def make_inputs(api, tensors):
    return [api.InferInput(name, list(tensor.shape), DATATYPES[tensor.dtype])
            for name, tensor in tensors.items()]


class Client:
    """For one thread. `protocol` is http-json, http-binary, grpc-binary, or http-shared: by memory
    that the server on the same machine reads and writes."""

    def __init__(self, protocol, port, grpc_port):
        transport, self._form = protocol.split("-")
        self._api = importlib.import_module(f"tritonclient.{transport}")
        self._client = self._api.InferenceServerClient(
            f"127.0.0.1:{port if transport == 'http' else grpc_port}")
        # gRPC has the one form, and no argument for it.
        self._choice = {"binary_data": self._form == "binary"} if transport == "http" else {}

    def prepare(self, tensors):
        """A request of tensors by name, for send and then finish."""
        if self._form == "shared":
            return SharedRequest(self._api, self._client, tensors)
        return PlainRequest(self._api, tensors, self._choice)

    def send(self, model, request):
        """The output. Raises tritonclient's exception with the server's words."""
        return request.output(self._client.infer(model, request.inputs, outputs=request.outputs))

    def infer(self, model, tensors):
        request = self.prepare(tensors)
        try:
            return self.send(model, request)
        finally:
            request.finish()

    def reload(self, model):
        self._client.load_model(model)

    def calls(self, model):
        """How often Triton called the model, each time with the requests that it merged."""
        statistics = self._client.get_inference_statistics(model)
        return statistics["model_stats"][0]["execution_count"]

    def close(self):
        self._client.close()
