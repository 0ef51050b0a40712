"""A model of Triton's Python backend: an archive, with the requests that Triton's batcher collects.

Triton starts a Python of its own, without the environment that has torch, so the server is given the
folders of modules in SELF_ATTENTION_PYTHON_PATH, and the library in SELF_ATTENTION_LIBRARY.
"""

import os
import sys

sys.path[:0] = os.environ["SELF_ATTENTION_PYTHON_PATH"].split(os.pathsep)

import torch
import triton_python_backend_utils as triton
from serving_model import ServedArchive, message_of


class TritonPythonModel:
    def initialize(self, args):
        archive = os.path.join(args["model_repository"], args["model_version"], "model.pt")
        self._archive = ServedArchive(archive, os.environ.get("SELF_ATTENTION_LIBRARY"))

    def execute(self, requests):
        # By DLPack: Triton's stub takes numpy's arrays apart as they were before numpy 2.
        inputs = [{tensor.name(): torch.from_dlpack(tensor.to_dlpack()) for tensor in request.inputs()}
                  for request in requests]
        return [self._response(answer) for answer in self._archive.answer(inputs)]

    @staticmethod
    def _response(answer):
        if isinstance(answer, Exception):
            return triton.InferenceResponse(error=triton.TritonError(message_of(answer)))
        output = triton.Tensor.from_dlpack("OUTPUT__0", answer.contiguous())
        return triton.InferenceResponse([output])
