"""A model of MLServer: an archive, called with the requests that came while it ran.

MLServer's own batching puts requests of unequal lengths together, so it stays off.
"""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

import torch
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceResponse
from serving_model import ServedArchive, message_of


class AttentionModel(MLModel):
    async def load(self):
        extra = self.settings.parameters.extra
        self._archive = ServedArchive(extra["archive"], os.environ.get("SELF_ATTENTION_LIBRARY"))
        self._rows = extra["max_batch_size"]
        self._waiting = []
        self._worker = None
        self._thread = ThreadPoolExecutor(1)
        await self._in_thread(self._archive.warm_up, extra["embed"], extra["heads"])
        return True

    async def predict(self, payload):
        try:
            output = NumpyCodec.encode_output("OUTPUT__0", (await self._answer(payload)).numpy())
        except Exception as error:
            raise InferenceError(message_of(error)) from error
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=[output])

    async def _answer(self, payload):
        request = {one.name: torch.tensor(NumpyCodec.decode_input(one)) for one in payload.inputs}
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        return await answer

    async def _work(self):
        while self._waiting:
            batch = [self._waiting.pop(0)]
            rows = self._batch_of(batch[0])
            while self._waiting and rows + self._batch_of(self._waiting[0]) <= self._rows:
                batch.append(self._waiting.pop(0))
                rows += self._batch_of(batch[-1])
            outputs = await self._in_thread(self._archive.answer, [request for request, _ in batch])
            for (_, answer), output in zip(batch, outputs):
                if answer.cancelled():
                    continue  # the client has gone
                if isinstance(output, Exception):
                    answer.set_exception(output)
                else:
                    answer.set_result(output)
        self._worker = None

    @staticmethod
    def _batch_of(waiting):
        request, _ = waiting
        return max((tensor.shape[0] for tensor in request.values() if tensor.dim()), default=1)

    async def _in_thread(self, function, *arguments):
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
