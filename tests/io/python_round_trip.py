"""State dicts from Python through C++ and back, bit for bit:
python_round_trip.py CHECKPOINT_PROBE SELF_ATTENTION_BINARY

Every format that Python writes, every dtype, strided and shared storages, empty tensors and scalars;
what C++ wrote is read with torch.load at its defaults and with the safetensors package. Modules that
loaded Python's weights give Python's outputs, single layers of larger models too. Also what reading
costs in memory, which files are refused, and that a killed save never loses the old file.
"""

import collections
import itertools
import os
import random
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

PROBE, TOOL = sys.argv[1:3]
del sys.argv[1:3]
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "support")]
import reference_modules  # noqa: E402
from folder_test import FolderTest  # noqa: E402
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


def described(state):
    return [f"{name}:{dtype_name(t.dtype)}:{'x'.join(map(str, t.shape))}" for name, t in state.items()]


def probe(source, target, state, key=""):
    command = [PROBE, "copy", source, target, key, *described(state)]
    return subprocess.run(command, capture_output=True, text=True)


class RoundTrip(FolderTest):
    def test_every_format_and_dtype_R30(self):
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

    def forward(self, variant, embed, heads, weights, inputs, prefix=""):
        """The output of a C++ module with the weights of a file."""
        save_file({name: t.contiguous() for name, t in inputs.items()}, self.folder / "inputs")
        command = [PROBE, "forward", variant, str(embed), str(heads), weights, prefix]
        command += [self.folder / "inputs", self.folder / "output.safetensors", *described(inputs)]
        # As many threads as here: sums depend on how they are split.
        environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
        run = subprocess.run(command, capture_output=True, text=True, env=environment)
        self.assertEqual(run.returncode, 0, run.stderr)
        return load_file(self.folder / "output.safetensors")["output"]

    def test_outputs_after_loading_are_pythons_R31(self):
        classes = {
            "shared_projection": (reference_modules.SharedProjectionAttention, 8, 2),
            "full_projection": (reference_modules.FullProjectionAttention, 8, 1),
            "inferred_length": (reference_modules.InferredLengthAttention, 5, 2),
        }
        for (variant, (module_class, embed, heads)), (name, write) in itertools.product(
            classes.items(), WRITERS.items()
        ):
            if name == "named_key":
                continue
            for dtype in FLOATING:
                with self.subTest(variant=variant, source=name, dtype=dtype):
                    torch.manual_seed(1)
                    module = module_class(embed, heads).to(dtype)
                    write(module.state_dict(), self.folder / "model")
                    length = 4 if variant == "inferred_length" else 5  # the former infers 5
                    inputs = {n: torch.randn(2, length, embed).to(dtype) for n in ("values", "keys", "query")}
                    if dtype != torch.float16:  # where Python refuses masks
                        inputs["mask"] = torch.ones(5, 5).tril()
                    with torch.no_grad():
                        expected = module(*inputs.values())
                    actual = self.forward(variant, embed, heads, self.folder / "model", inputs)
                    self.assertEqual(actual.shape, expected.shape)
                    self.assertTrue(torch.equal(bits(actual), bits(expected)))

    def test_a_layer_of_a_whole_transformer_runs_alike(self):
        torch.manual_seed(2)
        model = torch.nn.Transformer(
            16, 4, num_encoder_layers=2, num_decoder_layers=2, dim_feedforward=32, batch_first=True
        ).double().eval()
        for parameter in model.parameters():  # biases start at zero, which would hide a wrong one
            torch.nn.init.normal_(parameter)
        checkpoint = {"model": {f"module.{n}": t for n, t in model.state_dict().items()}, "epoch": 3}
        torch.save(checkpoint, self.folder / "transformer.pt")
        inputs = {n: torch.randn(2, 5, 16, dtype=torch.float64) for n in ("values", "keys", "query")}
        padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        inputs["mask"] = ~padding.view(2, 1, 1, 5)
        layers = {
            "module.encoder.layers.1.self_attn.": model.encoder.layers[1].self_attn,
            "module.decoder.layers.0.multihead_attn.": model.decoder.layers[0].multihead_attn,
        }
        for prefix, layer in layers.items():
            with self.subTest(layer=prefix), torch.no_grad():
                expected, _ = layer(
                    inputs["query"], inputs["keys"], inputs["values"], key_padding_mask=padding, need_weights=False
                )
                actual = self.forward(
                    "multihead_attention", 16, 4, self.folder / "transformer.pt", inputs, prefix
                )
                torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)

    def test_a_layer_of_a_transformer_of_the_original_class_runs_alike(self):
        torch.manual_seed(3)
        layers = torch.nn.ModuleList(
            torch.nn.ModuleDict(
                {"attention": reference_modules.SharedProjectionAttention(8, 2), "norm": torch.nn.LayerNorm(8)}
            )
            for _ in range(3)
        )
        model = torch.nn.ModuleDict({"encoder": torch.nn.ModuleDict({"layers": layers})})
        torch.save({"state_dict": model.state_dict(), "optimizer": {}}, self.folder / "whole.ckpt")
        inputs = {n: torch.randn(2, 5, 8) for n in ("values", "keys", "query")}
        inputs["mask"] = torch.ones(5, 5).tril()
        with torch.no_grad():
            expected = layers[1]["attention"](*inputs.values())
        actual = self.forward(
            "shared_projection", 8, 2, self.folder / "whole.ckpt", inputs, "encoder.layers.1.attention."
        )
        self.assertTrue(torch.equal(actual, expected))

    def test_reading_costs_no_more_memory_than_the_file(self):
        def peak(write, count):
            """The largest resident size of a process that loads so many numbers and saves them."""
            state = {"weight": torch.ones(count)}
            write(state, self.folder / "large")
            command = [PROBE, "copy", self.folder / "large", self.folder / "out.pt", ""]
            process = subprocess.Popen([*command, *described(state)])
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(process.returncode, 0)
            return usage.ru_maxrss * 1024

        count = 2**26
        size = 4 * count
        for name in ("dict", "legacy", "safetensors"):
            with self.subTest(source=name):
                module = size  # what the probe's module holds beside the file's bytes
                self.assertLess(peak(WRITERS[name], count) - peak(WRITERS[name], 1) - module, 1.1 * size)

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
            process = subprocess.Popen([PROBE, "copy", source, target, "", "weight:float32:500000"])
            time.sleep(random.uniform(0, 0.5))
            process.send_signal(signal.SIGKILL)
            process.wait()
            weight = torch.load(target)["weight"]
            self.assertTrue(bool((weight == weight[0]).all()) and weight.numel() == 500_000)


if __name__ == "__main__":
    unittest.main()
