"""Requests to a server of the v2 protocol, by the package tritonclient: in JSON or in binary."""

import importlib
import sys

import torch

# The server's name of a dtype.
DATATYPES = {torch.float32: "FP32", torch.float64: "FP64", torch.float16: "FP16", torch.bool: "BOOL"}


def use_modules(folder):
    """The folder that has tritonclient; what this Python has itself comes first."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


class Client:
    """For one thread. `protocol` is http-json, http-binary or grpc-binary."""

    def __init__(self, protocol, port, grpc_port):
        transport, self._form = protocol.split("-")
        self._api = importlib.import_module(f"tritonclient.{transport}")
        self._client = self._api.InferenceServerClient(
            f"127.0.0.1:{port if transport == 'http' else grpc_port}")
        # gRPC has the one form, and no argument for it.
        self._choice = {"binary_data": self._form == "binary"} if transport == "http" else {}

    def prepare(self, tensors):
        """A request of tensors by name, for send."""
        inputs = []
        for name, tensor in tensors.items():
            one = self._api.InferInput(name, list(tensor.shape), DATATYPES[tensor.dtype])
            one.set_data_from_numpy(tensor.numpy(), **self._choice)
            inputs.append(one)
        return inputs, [self._api.InferRequestedOutput("OUTPUT__0", **self._choice)]

    def send(self, model, request):
        """The output. Raises tritonclient's exception with the server's words."""
        inputs, outputs = request
        result = self._client.infer(model, inputs, outputs=outputs)
        return torch.from_numpy(result.as_numpy("OUTPUT__0").copy())

    def infer(self, model, tensors):
        return self.send(model, self.prepare(tensors))

    def reload(self, model):
        self._client.load_model(model)

    def calls(self, model):
        """How often Triton called the model, each time with the requests that it merged."""
        statistics = self._client.get_inference_statistics(model)
        return statistics["model_stats"][0]["execution_count"]

    def close(self):
        self._client.close()
