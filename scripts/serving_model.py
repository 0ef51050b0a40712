"""What the models of every server do: call one archive with the requests that came together.

Runs inside the servers, which need torch for it, and the library for archives that call its ops.
"""

import torch

WARM_UP_CALLS = 3  # TorchScript compiles in the first two
WARM_UP_LENGTH = 16


def message_of(error):
    """The line that says what was wrong: TorchScript puts a traceback in front of it."""
    line = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
    # The library's own messages begin with who says them.
    return "[" + line.split(": [", 1)[1] if ": [" in line else line


class ServedArchive:
    """An archive of `self-attention export`."""

    def __init__(self, path, library=None):
        if library:
            torch.ops.load_library(library)
        self._module = torch.jit.load(str(path))
        self.arguments = [argument.name for argument in self._module.forward.schema.arguments[1:]]

    def answer(self, requests):
        """For each dict of tensors by argument its output, or the Exception that it led to.

        Requests whose tensors differ in the batch alone are computed in one call.
        """
        answers = [None] * len(requests)
        groups = {}
        for index, request in enumerate(requests):
            try:
                tensors = self._tensors(request)
                groups.setdefault(self._group_of(index, tensors), []).append((index, tensors))
            except Exception as error:
                answers[index] = error
        for group in groups.values():
            for (index, _), answer in zip(group, self._call([tensors for _, tensors in group])):
                answers[index] = answer
        return answers

    def warm_up(self, embed, heads):
        """Makes the first calls, which compile."""
        length = WARM_UP_LENGTH * heads  # which InferredLengthAttention can reshape
        dtype = next((tensor.dtype for tensor in self._module.parameters()), torch.float32)
        request = dict.fromkeys(self.arguments, torch.zeros(1, length, embed, dtype=dtype))
        if "mask" in request:
            request["mask"] = torch.ones(1, 1, 1, length, dtype=torch.bool)
        for _ in range(WARM_UP_CALLS):
            for answer in self.answer([request]):
                if isinstance(answer, Exception):
                    raise answer

    def _tensors(self, request):
        for name in self.arguments:
            if name not in request:
                given = ", ".join(sorted(request)) or "none"
                raise ValueError(f"[serving] {name}: expected a tensor of that name, got {given}")
        return [request[name] for name in self.arguments]

    @staticmethod
    def _group_of(index, tensors):
        """Equal for requests that may be one call: their rows are then those of one batch."""
        rows = {tensor.shape[0] if tensor.dim() else None for tensor in tensors}
        if len(rows) > 1:
            return index  # one mask for all rows, or an error: by itself
        return tuple((tensor.shape[1:], tensor.dtype) for tensor in tensors)

    def _call(self, group):
        try:
            with torch.no_grad():
                if len(group) == 1:
                    return [self._module(*group[0])]
                rows = [tensors[0].shape[0] for tensors in group]
                output = self._module(*map(torch.cat, zip(*group)))
                return output.split(rows)
        except Exception as error:
            return [error] * len(group)
