"""State dicts from Python through C++ and back, bit for bit:
python_round_trip.py CHECKPOINT_PROBE SELF_ATTENTION_BINARY

Every format that Python writes, every dtype, strided and shared storages, empty tensors and scalars;
what C++ wrote is read with torch.load at its defaults and with the safetensors package. Also which
files are refused, and that a killed save never loses the old file.
"""

import collections
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

PROBE, TOOL = sys.argv[1:3]
del sys.argv[1:3]
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import reference_modules  # noqa: E402
FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
DTYPES = (*FLOATING, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def dtype_name(dtype):
    return str(dtype).removeprefix("torch.")


def make_state():
    """Names to tensors: every dtype, and every way for a tensor to lie in its storage."""
    torch.manual_seed(0)
    state = {}
    for dtype in DTYPES:
        values = torch.randint(0, 100, (3, 4))
        state[f"dense.of_{dtype_name(dtype)}"] = (values % 2 if dtype == torch.bool else values).to(dtype)
    base = torch.randn(4, 6)
    state["strided.transposed"] = base.t()
    state["strided.column"] = base[:, 2]
    state["strided.rows"] = base[1:3]
    state["shared.first"] = state["shared.second"] = torch.randn(5)
    state["scalar"] = torch.tensor(2.5)
    state["empty"] = torch.empty(0, 7)
    state["nan"] = torch.tensor([float("nan"), -0.0, float("inf")])
    return state


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else tensor


def write_scripted(state, path):
    class Holder(torch.nn.Module):
        def forward(self):
            return 0

    root = Holder()
    for name, tensor in state.items():
        *parents, last = name.split(".")
        module = root
        for parent in parents:
            if parent not in dict(module.named_children()):
                module.add_module(parent, Holder())
            module = getattr(module, parent)
        module.register_buffer(last, tensor)
    torch.jit.script(root).save(path)


def nested(key):
    def write(state, path):
        optimizer = {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1}]}
        torch.save({key: state, "epoch": 7, "optimizer": optimizer, "name": "run"}, path)

    return write


def with_metadata(state, path):
    ordered = collections.OrderedDict(state)
    ordered._metadata = collections.OrderedDict({"": {"version": 1}})
    torch.save(ordered, path)


WRITERS = {
    "ordered_dict": with_metadata,
    "dict": torch.save,
    "legacy": lambda state, path: torch.save(state, path, _use_new_zipfile_serialization=False),
    "parameters": lambda state, path: torch.save(
        {n: torch.nn.Parameter(t, requires_grad=t.dtype in FLOATING) for n, t in state.items()}, path),
    "model": nested("model"),
    "state_dict": nested("state_dict"),
    "model_state_dict": nested("model_state_dict"),
    "named_key": nested("ema"),
    "safetensors": lambda state, path: save_file({n: t.clone().contiguous() for n, t in state.items()}, path),
    "torchscript": write_scripted,
}


def probe(source, target, state, key=""):
    buffers = [f"{name}:{dtype_name(t.dtype)}:{'x'.join(map(str, t.shape))}" for name, t in state.items()]
    return subprocess.run([PROBE, source, target, key, *buffers], capture_output=True, text=True)


class RoundTrip(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_every_format_and_dtype(self):
        state = make_state()
        for (name, write), ending in itertools.product(WRITERS.items(), ("pt", "safetensors")):
            with self.subTest(source=name, target=ending):
                # The name tells nothing: the format is in the bytes.
                source, target = self.folder / "source.bin", self.folder / f"target.{ending}"
                write(state, source)
                run = probe(source, target, state, "ema" if name == "named_key" else "")
                self.assertEqual(run.returncode, 0, run.stderr)
                loaded = torch.load(target) if ending == "pt" else load_file(target)
                self.assertEqual(set(loaded), set(state))
                for key, tensor in state.items():
                    self.assertEqual(loaded[key].dtype, tensor.dtype, key)
                    self.assertEqual(loaded[key].shape, tensor.shape, key)
                    self.assertTrue(torch.equal(bits(loaded[key]), bits(tensor)), key)

    def test_a_layer_of_a_whole_model_runs_alike(self):
        linear = torch.nn.Linear(4, 3)
        torch.save(linear.state_dict(), self.folder / "linear.pt")
        run = probe(self.folder / "linear.pt", self.folder / "out.pt", linear.state_dict())
        self.assertEqual(run.returncode, 0, run.stderr)
        other = torch.nn.Linear(4, 3)
        other.load_state_dict(torch.load(self.folder / "out.pt"))
        x = torch.randn(2, 4)
        self.assertTrue(torch.equal(other(x), linear(x)))

    def test_whole_objects_are_refused_and_nothing_runs(self):
        class Trap:
            def __reduce__(self):
                return os.system, (f"touch {trap}",)

        trap = self.folder / "ran"
        state = {"weight": torch.ones(2)}
        torch.save({**state, "trap": Trap()}, self.folder / "trap.pt")
        run = probe(self.folder / "trap.pt", self.folder / "out.pt", state)
        self.assertEqual(run.returncode, 1)
        self.assertIn("trap", run.stderr)
        self.assertFalse(trap.exists())

    def inspect(self, state):
        torch.save(state, self.folder / "model.pt")
        run = subprocess.run([TOOL, "inspect", self.folder / "model.pt"], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def test_inspect_names_the_module(self):
        shared = reference_modules.SharedProjectionAttention(8, 2).state_dict()
        text = self.inspect({"model": {f"encoder.{n}": t for n, t in shared.items()}, "epoch": 3})
        self.assertIn('PyTorch checkpoint', text)
        self.assertRegex(text, r"encoder\.fc_out\.weight +float32 +\(8, 8\) +256 bytes")
        self.assertIn('fits SharedProjectionAttention at "encoder.": embed 8, heads 2', text)
        text = self.inspect(reference_modules.InferredLengthAttention(5, 2).state_dict())
        self.assertIn("fits InferredLengthAttention: embed 5, heads 2", text)
        text = self.inspect(reference_modules.FullProjectionAttention(8, 2).state_dict())
        self.assertIn("fits FullProjectionAttention: embed 8, heads not told", text)
        self.assertNotIn("fits", self.inspect(torch.nn.Linear(2, 2).state_dict()))

    def test_inspect_refuses_other_files(self):
        (self.folder / "text.pt").write_text("no tensors here, only words, and enough of them")
        run = subprocess.run([TOOL, "inspect", self.folder / "text.pt"], capture_output=True, text=True)
        self.assertEqual(run.returncode, 2)
        self.assertIn("text.pt", run.stderr)

    def test_a_killed_save_leaves_the_old_file_whole(self):
        state = {"weight": torch.zeros(500_000)}
        source, target = self.folder / "source.pt", self.folder / "target.pt"
        torch.save({"weight": torch.ones(500_000)}, source)
        torch.save(state, target)
        random.seed(0)
        for _ in range(100):
            process = subprocess.Popen([PROBE, source, target, "", "weight:float32:500000"])
            time.sleep(random.uniform(0, 0.5))
            process.send_signal(signal.SIGKILL)
            process.wait()
            weight = torch.load(target)["weight"]
            self.assertTrue(bool((weight == weight[0]).all()) and weight.numel() == 500_000)


if __name__ == "__main__":
    unittest.main()
