"""Tests of scripts/export_reference.py and of the Python statement of the three classes."""

import functools
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import zlib
from dataclasses import replace
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))

from export_support import (
    SCRIPTS,
    USER_MODULE,
    FolderTest,
    document,
    needs_documents,
    run_export,
)

# After export_support, which puts scripts on the import path and sets how torch's threads wait.
import reference_cases  # isort: skip
import torch  # isort: skip
from atomic_file import write_atomically
from reference_modules import FullProjectionAttention, SharedProjectionAttention
from reference_run import draw, evaluate, forward
from reference_source import load_source, our_source
from reference_spec import DTYPES, LAYOUTS, VARIANTS
from reference_tensors import generator_for
from safetensors import safe_open


def raw_bytes(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@functools.cache
def whole_export():
    """An export of everything at seed 0, made once: its folder, its manifest and its stdout."""
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    out = Path(folder.name) / "reference"
    status, stdout, stderr = run_export("--out", out)
    assert (status, stderr) == (0, ""), stderr
    return out, json.loads((out / "manifest.json").read_text()), stdout


@functools.cache
def our_entries():
    """Name -> entry of the project's own classes at seed 0, checksums of all results included."""
    return {case["name"]: case for case in whole_export()[1]["cases"]}


class GridTest(unittest.TestCase):
    def test_every_variant_covers_what_it_must(self):
        for name in VARIANTS:
            with self.subTest(name):
                cases = reference_cases.grid(name)
                running = [case for case in cases if not case.refused]
                self.assertGreaterEqual(len(cases), 150)
                self.assertEqual({case.dtype for case in running}, set(DTYPES))
                kinds = {case.kind for case in running}
                self.assertLessEqual(set(reference_cases.MASK_KINDS), kinds)
                masks = {case.mask.dtype for case in running if case.mask is not None}
                self.assertEqual(masks, set(reference_cases.MASK_DTYPES))
                layouts = set().union(*(case.layouts for case in running))
                self.assertEqual(layouts, set(LAYOUTS))
                self.assertGreaterEqual(len(cases) - len(running), 30)

    def test_a_case_draws_the_same_numbers_whatever_stands_beside_it(self):
        source = our_source("shared_projection")
        first, *_, last = (
            case for case in reference_cases.grid("shared_projection") if not case.refused
        )
        evaluate(first, source, source, seed=0)
        after = evaluate(last, source, source, seed=0).entry
        self.assertEqual(after, evaluate(last, source, source, seed=0).entry)
        self.assertNotEqual(after, evaluate(last, source, source, seed=1).entry)

    def test_attention_is_far_from_uniform(self):
        for name in VARIANTS:
            source = our_source(name)
            case = next(case for case in reference_cases.grid(name) if case.dtype == "float64")
            numbers = draw(case, generator_for(0, case.name))
            blind = {  # all scores 0, or alike in a row
                key: torch.zeros_like(tensor) if key.startswith("q") else tensor
                for key, tensor in numbers.parameters.items()
            }
            output, _ = forward(source, case, numbers)
            uniform, _ = forward(source, case, replace(numbers, parameters=blind))
            self.assertGreater((output - uniform).abs().mean().item(), 0.2, name)


@needs_documents
class OriginalsTest(unittest.TestCase):
    """The project's statement against the public classes, to the bit, over the whole grid."""

    def test_outputs_and_gradients_are_bit_equal(self):
        for name in VARIANTS:
            original, ours = load_source(name, document(name)), our_source(name)
            cases = reference_cases.grid(name)
            compared = 0
            for case in cases:
                expected = evaluate(case, original, ours, seed=0).entry
                if expected["owes"] == "equal":
                    self.assertNotIn("source_error", expected, case.name)
                    self.assertEqual(expected, our_entries()[case.name])
                    compared += 1
            self.assertGreaterEqual(compared, 64, name)
            for seed, case in enumerate(cases[::6], start=1):
                expected = evaluate(case, original, ours, seed).entry
                if expected["owes"] == "equal":
                    self.assertEqual(expected, evaluate(case, ours, ours, seed).entry)

    def test_half_precision_masks_raise_in_the_originals(self):
        for name in ("shared_projection", "inferred_length"):
            original = load_source(name, document(name))
            masked = [
                case
                for case in reference_cases.grid(name)
                if case.dtype == "float16" and case.mask is not None
            ]
            module = original.cls(masked[0].embed, masked[0].heads).half()
            tensors = [torch.ones(1, 2, masked[0].embed).half()] * 3
            for source in (module, our_source(name).cls(masked[0].embed, masked[0].heads).half()):
                with self.assertRaisesRegex(RuntimeError, "without overflow"):
                    source(*tensors, torch.ones(1, 1, 1, 2))
            owes = {original.departure(case) for case in masked}
            self.assertEqual(owes, {"float16 with a mask"})

    def test_001_departs_by_named_rules(self):
        source = load_source("full_projection", document("full_projection"))
        rules = {
            source.departure(case)
            for case in reference_cases.grid("full_projection")
            if not case.refused
        }
        self.assertEqual(
            rules,
            {None, "001 beyond one head", "001 with a mask", "001 with separate inputs"},
        )


class StatementTest(unittest.TestCase):
    def test_same_seed_same_initial_weights(self):
        torch.manual_seed(0)
        shared = SharedProjectionAttention(8, 2)
        torch.manual_seed(0)
        full = FullProjectionAttention(8, 1)
        total = sum(parameter.double().sum() for parameter in shared.parameters())
        self.assertAlmostEqual(total.item(), -1.797072, places=5)
        self.assertAlmostEqual(full.output_linear.bias[0].item(), 0.011264, places=5)

    def test_001_wants_both_or_neither_of_keys_and_query(self):
        module, x = FullProjectionAttention(8, 2), torch.ones(1, 3, 8)
        for arguments, missing in (((x, x), "query"), ((x, None, x), "keys")):
            with self.assertRaisesRegex(ValueError, missing):
                module(*arguments)


class ContractTest(FolderTest):
    def check_directory(self, out):
        """Every listed tensor is stored as described, and nothing else is. Returns the manifest."""
        manifest = json.loads((out / "manifest.json").read_text())
        self.assertEqual(manifest["format"], "self-attention-reference")
        self.assertEqual(manifest["format_version"], 1)
        names = [case["name"] for case in manifest["cases"]]
        self.assertEqual(len(set(names)), len(names))
        files = {case["file"] for case in manifest["cases"]}
        self.assertEqual({path.name for path in out.iterdir()}, files | {"manifest.json"})
        for file in files:
            with safe_open(out / file, framework="pt") as stored:
                left = set(stored.keys())
                for case in manifest["cases"]:
                    if case["file"] == file:
                        left -= self.check_case(case, stored)
                self.assertEqual(left, set())
        return manifest

    def check_case(self, case, stored):
        """The keys of the case's tensors, each checked."""
        keys = set()
        for role, described in case["tensors"].items():
            key = f"{case['name']}/{role}"
            tensor = stored.get_tensor(key)
            self.assertEqual(list(tensor.shape), described["shape"], key)
            self.assertEqual(len(described["strides"]), tensor.dim(), key)
            self.assertEqual(str(tensor.dtype), f"torch.{described['dtype']}", key)
            self.assertEqual(f"{zlib.crc32(raw_bytes(tensor)):08x}", described["crc32"], key)
            keys.add(key)
        self.check_roles(case)
        return keys

    def check_roles(self, case):
        roles, name = set(case["tensors"]), case["name"]
        for tensor in case["arguments"].values():
            self.assertIn(f"input.{tensor}", roles, name)
        parameters = {role for role in roles if role.startswith("parameter.")}
        if case["owes"] == "refuse":
            self.assertTrue(case["words"] and all(case["words"]), name)
            self.assertEqual(roles - parameters - {"mask"}, self.inputs(roles), name)
            return
        leaves = {role.partition(".")[2] for role in self.inputs(roles) | parameters}
        results = {"output"} | {f"gradient.{leaf}" for leaf in leaves}
        exact = {f"float64.{role}" for role in results}
        expected = {"cotangent"} | self.inputs(roles) | parameters | ({"mask"} & roles)
        if case["owes"] == "departs":
            self.assertTrue(case["rule"], name)
            expected |= exact
        else:
            expected |= results | (exact if case["dtype"] != "float64" else set())
        self.assertEqual(roles, expected, name)

    @staticmethod
    def inputs(roles):
        return {role for role in roles if role.startswith("input.")}

    def test_whole_export_follows_the_contract(self):
        out, manifest, stdout = whole_export()
        self.check_directory(out)
        self.assertEqual(set(manifest["sources"]), set(VARIANTS))
        self.assertNotIn("warning", stdout)
        self.assertRegex(stdout, r"MultiheadAttention: \d\d+ cases, largest difference \d")
        self.assertLess(sum(path.stat().st_size for path in out.iterdir()), 60 * 2**20)
        owed = {(case["variant"], case["owes"]) for case in manifest["cases"]}
        self.assertEqual(
            owed, {(name, owes) for name in VARIANTS for owes in ("equal", "refuse", "departs")}
        )

    def test_strides_are_those_of_the_layouts(self):
        out, _ = self.export("--variant", "shared_projection", "--filter", "float16/none")
        cases = json.loads((out / "manifest.json").read_text())["cases"]
        strides = {
            case["name"].rpartition("-")[2]: case["tensors"]["input.q"]["strides"]
            for case in cases
            if "-h2-" in case["name"] and "input.q" in case["tensors"]
        }
        self.assertEqual(strides["expanded"], [0, 0, 1])
        self.assertEqual(strides["sliced"], [36, 12, 2])
        self.assertEqual(strides["transposed_embed"], [18, 1, 3])
        self.assertEqual(strides["transposed_batch"], [6, 12, 1])

    @needs_documents
    def test_snapshots_of_the_originals_are_small_and_whole(self):
        total = 0
        for name in VARIANTS:
            out = self.folder / name
            status, _, stderr = run_export(
                "--out", out, "--variant", name, "--source", document(name), "--snapshot"
            )
            self.assertEqual((status, stderr), (0, ""))
            manifest = self.check_directory(out)
            self.assertTrue(manifest["snapshot"])
            grid = reference_cases.grid(name)
            chosen = {case["name"] for case in manifest["cases"]}
            self.assertEqual(
                {case.kind for case in grid if case.name in chosen}, {case.kind for case in grid}
            )
            self.assertEqual({case["dtype"] for case in manifest["cases"]}, set(DTYPES))
            total += sum(path.stat().st_size for path in out.iterdir())
        self.assertLess(total, 900 * 2**10)


class AtomicFileTest(FolderTest):
    """Contents of one size, told apart by every byte."""

    SIZE = 1 << 16
    SAVE = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from atomic_file import write_atomically\n"
        "for i in range(int(sys.argv[3])): write_atomically(Path(sys.argv[2]), bytes([i % 2]) * (1 << 16))\n"
    )

    def start(self, path, count):
        return subprocess.Popen([sys.executable, "-c", self.SAVE, SCRIPTS, path, str(count)],
                                stderr=subprocess.DEVNULL)

    def assert_whole(self, path):
        data = path.read_bytes()
        self.assertEqual(data, data[:1] * self.SIZE)

    def test_a_signal_leaves_a_whole_file_and_nothing_piles_up(self):
        path = self.folder / "file"
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            path.write_bytes(bytes(self.SIZE))
            process = self.start(path, 10**5)
            self.addCleanup(process.kill)
            modified = path.stat().st_mtime_ns
            while path.stat().st_mtime_ns == modified and process.poll() is None:
                time.sleep(0.001)
            time.sleep(random.random() / 50)
            process.send_signal(number)
            self.assertNotEqual(process.wait(), 0)
            self.assert_whole(path)
            self.assertLessEqual(len(list(self.folder.iterdir())), 2)
        write_atomically(path, b"end")
        self.assertEqual(path.read_bytes(), b"end")
        self.assertEqual(list(self.folder.iterdir()), [path])

    def test_processes_may_write_one_path(self):
        path = self.folder / "file"
        processes = [self.start(path, 50) for _ in range(3)]
        self.assertEqual([process.wait() for process in processes], [0, 0, 0])
        self.assert_whole(path)
        self.assertEqual(list(self.folder.iterdir()), [path])


class CommandTest(FolderTest):
    def test_the_same_seed_gives_the_same_bytes_in_another_process(self):
        arguments = ["--variant", "inferred_length", "--filter", "per_head", "--seed", "7"]
        out, _ = self.export(*arguments)
        other = self.folder / "other"
        subprocess.run(
            [sys.executable, SCRIPTS / "export_reference.py", "--out", other, *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for path in out.iterdir():
            self.assertEqual(path.read_bytes(), (other / path.name).read_bytes(), path.name)

    def test_a_second_export_replaces_the_first(self):
        for text, count in (("float64/per_head", 1), ("per_head", 6)):
            out, _ = self.export("--variant", "shared_projection", "--filter", text)
            cases = json.loads((out / "manifest.json").read_text())["cases"]
            self.assertEqual(len(cases), count)
        self.assertEqual(len(list(out.iterdir())), 2)

    def test_a_failed_write_leaves_no_manifest(self):
        out, _ = self.export("--variant", "shared_projection", "--filter", "per_head")
        (out / "shared_projection.safetensors").unlink()
        (out / "shared_projection.safetensors").mkdir()
        status, _, stderr = run_export(
            "--out", out, "--variant", "shared_projection", "--filter", "per_head"
        )
        self.assertEqual(status, 2)
        self.assertIn("cannot write", stderr)
        self.assertEqual([path.name for path in out.iterdir()], ["shared_projection.safetensors"])

    def test_a_full_or_read_only_disk_is_reported(self):
        out = self.folder / "out"
        out.mkdir()
        arguments = ("--out", out, "--variant", "shared_projection", "--filter", "per_head")
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", out],
                                 capture_output=True, text=True)
        if mounted.returncode != 0:
            self.skipTest(f"no small file system: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", out], check=True)
        status, _, stderr = run_export(*arguments)
        self.assertEqual(status, 2)
        self.assertIn("No space left on device", stderr)
        self.assertEqual(list(out.iterdir()), [])
        subprocess.run(["mount", "-o", "remount,ro", out], check=True)
        status, _, stderr = run_export(*arguments)
        self.assertEqual(status, 2)
        self.assertIn("Read-only file system", stderr)

    def test_a_wrong_001_is_not_written(self):
        out = self.folder / "out"
        with mock.patch("reference_multihead.TOLERANCE", 0.0):
            status, stdout, stderr = run_export("--out", out, "--filter", "full_projection/float64")
        self.assertEqual(status, 1)
        self.assertIn("largest difference", stdout)
        self.assertIn("nothing written", stderr)
        self.assertFalse(out.exists())

    def test_requests_that_cannot_be_served(self):
        taken = self.write("taken", "")
        missing = self.folder / "missing.py"
        for arguments, words in (
            (["--source", USER_MODULE], "--source needs the --variant"),
            (["--variant", "fourth"], "invalid choice"),
            (["--filter", "no such case"], "no case's name holds"),
            (["--filter", "per_head", "--out", taken], "choose another --out"),
            (["--variant", "shared_projection", "--source", missing], "no such file"),
        ):
            with self.subTest(words):
                status, _, stderr = run_export("--out", self.folder / "out", *arguments)
                self.assertEqual(status, 2)
                self.assertIn(words, stderr)
        self.assertFalse((self.folder / "out").exists())


if __name__ == "__main__":
    unittest.main()
