"""The example of a host in C++, tests/examples/serve, built with the installed package and run:
host_test.py BUILD_DIR TORCH_DIR TORCHSCRIPT_PROBE LIBRARY [UNITTEST OPTIONS]
"""

import subprocess
import sys
import unittest
from pathlib import Path

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "io"), str(ROOT / "tests" / "support")]

from archives import export_all, job, make_class, write_weights
from folder_test import FolderTest

BUILD, TORCH_DIR, PROBE, LIBRARY = sys.argv[1:5]
del sys.argv[1:5]
SERVE = Path(BUILD) / "examples" / "serve" / "serve"
EMBED, HEADS = 64, 4
VARIANTS = ("shared_projection", "full_projection", "inferred_length")
KINDS = ("portable", "fused")


def build():
    """Installs and configures into folders that stay, so that a second run compiles nothing."""
    prefix, folder = SERVE.parent / "prefix", SERVE.parent
    for words in (["cmake", "--install", BUILD, "--prefix", prefix],
                  ["cmake", "-S", ROOT / "tests" / "examples" / "serve", "-B", folder, "-G", "Ninja",
                   "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_PREFIX_PATH={prefix}",
                   f"-DTorch_DIR={TORCH_DIR}"],
                  ["cmake", "--build", folder]):
        run = subprocess.run([*map(str, words)], capture_output=True, text=True)
        if run.returncode != 0:
            sys.exit(f"{run.stdout}\n{run.stderr}")


def serve(*words):
    return subprocess.run([str(SERVE), *map(str, words)], capture_output=True, text=True)


class HostTest(FolderTest):
    def export(self, variant, ops, **form):
        module = make_class(variant, EMBED, HEADS)
        weights = write_weights(module.state_dict(), self.folder / "weights.safetensors")
        out = self.folder / f"{variant}_{ops}.pt"
        self.assertEqual(export_all(PROBE, [job(variant, weights, out, EMBED, HEADS, ops=ops, **form)]), ["ok"])
        return module, out

    def answer(self, model, requests, *options):
        """The process, and the answers in its file."""
        sent, got = self.folder / "requests.pt", self.folder / "answers.pt"
        torch.save(requests, sent)
        run = serve("answer", model, sent, got, *options)
        # A file of our own; LibTorch writes what the careful reader does not know.
        return run, torch.load(got, weights_only=False) if got.exists() else None

    def measure(self, *words):
        run = serve("load", *words)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        return dict(line.split(": ", 1) for line in run.stdout.splitlines())

    def test_answers_are_those_of_python(self):
        for variant in VARIANTS:
            for ops in KINDS:
                with self.subTest(variant, ops=ops):
                    module, archive = self.export(variant, ops)
                    self.check_answers(module, archive)

    def check_answers(self, module, model, *options, masked=True):
        requests = []
        for rows, keys, queries in ((1, 1, 1), (2, 5, 3), (3, 40, 7), (8, 16, 16)) * 4:
            tensors = [torch.randn(rows, length, EMBED) for length in (keys, keys, queries)]
            requests.append(tensors + ([torch.rand(rows, 1, 1, keys) < 0.7] if masked else []))
        run, answers = self.answer(model, requests, *options)
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "", ""))
        self.assertEqual(len(answers), len(requests))
        for tensors, found in zip(requests, answers):
            torch.testing.assert_close(found, module(*tensors).detach(), rtol=1e-5, atol=1e-6)

    def compile(self, variant, weights, *options):
        words = [sys.executable, ROOT / "scripts" / "compile_module.py", "--library", LIBRARY, "--variant",
                 variant, "--weights", weights, "--out", self.folder / f"{variant}.pt2", *options]
        return subprocess.run([*map(str, words)], capture_output=True, text=True)

    def compiled(self, variant, mask):
        """The class, and a package of AOTInductor."""
        module, out = make_class(variant, EMBED, HEADS), self.folder / f"{variant}.pt2"
        weights = write_weights(module.state_dict(), self.folder / "weights.safetensors")
        run = self.compile(variant, weights, "--heads", HEADS, "--mask", mask)
        self.assertEqual((run.returncode, run.stdout), (0, f"wrote {out}\n"), run.stderr)
        return module, out

    def test_what_cannot_be_compiled_is_named(self):
        module = make_class("full_projection", EMBED, HEADS)
        weights = write_weights(module.state_dict(), self.folder / "weights.safetensors")
        for words, said in (([self.folder / "absent.pt"], "absent.pt"), ([weights], "--heads: expected a number")):
            run = self.compile("full_projection", *words)
            self.assertEqual(run.returncode, 2)
            self.assertIn("error: [compile_module]", run.stderr)
            self.assertIn(said, run.stderr)
        self.assertFalse((self.folder / "full_projection.pt2").exists())

    def test_a_package_answers_with_its_weights_and_with_others(self):
        for variant, mask in (("shared_projection", "required"), ("full_projection", "none")):
            with self.subTest(variant, mask=mask):
                module, package = self.compiled(variant, mask)
                self.check_answers(module, package, masked=mask == "required")
                trained = self.folder / "trained.safetensors"
                run = serve("train", package, trained, "--steps", 20)
                self.assertEqual((run.returncode, run.stderr), (0, ""))
                first, last = (float(line.split()[1]) for line in run.stdout.splitlines())
                self.assertLess(last, first)
                module.load_state_dict(load_file(trained))
                self.check_answers(module, package, "--weights", trained, masked=mask == "required")
                found = self.measure(package, "--requests", 2000)
                self.assertEqual(found["answered"], "2000")
                if mask == "required":
                    self.check_odd_requests(module, package, trained)

    def check_odd_requests(self, module, package, weights):
        x, mask = torch.randn(2, 5, EMBED), torch.ones(2, 1, 1, 5, dtype=torch.bool)
        wrong = {"values: expected as many positions": [x[:, :4].contiguous(), x, x, mask],
                 "query: expected shape": [x, x, x[..., :8].contiguous(), mask],
                 "values: expected float32": [x.double(), x, x, mask],
                 "mask: expected a shape that broadcasts": [x, x, x, mask[..., :3].contiguous()],
                 "mask: expected shape (N, 1, 1, K)": [x, x, x, mask.expand(2, 1, 5, 5).contiguous()],
                 "arguments: expected 4 tensors, got 3": [x, x, x]}
        none = x[:, :0]
        right = [[x, x, x, mask[:1].float()], [none, none, x, mask[..., :0]],
                 [x[:0], x[:0], x[:0], mask[:0]], [x, x, none, mask]]
        run, answers = self.answer(package, [*wrong.values(), *right], "--weights", weights)
        self.assertEqual(run.returncode, 1)
        for index, (line, words) in enumerate(zip(run.stdout.splitlines(), wrong)):
            self.assertTrue(line.startswith(f"request {index}: ["), line)
            self.assertIn(words, line)
        for tensors, found in zip(right, answers[len(wrong):]):
            expected = module(*tensors).detach()
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)

    def test_a_wrong_request_fails_alone(self):
        for ops in KINDS:
            module, archive = self.export("shared_projection", ops)
            x, mask = torch.randn(2, 5, EMBED), torch.ones(2, 1, 1, 5, dtype=torch.bool)
            run, answers = self.answer(archive, [[x, x, x, mask], [x[:, :4].contiguous(), x, x, mask], [x, x, x, mask]])
            self.assertEqual(run.returncode, 1)
            self.assertRegex(run.stdout, r"\Arequest 1: \[[Ss]hared.*\] values: expected as many positions as keys, "
                                         r"K=5, got 4 in \(2, 4, 64\)\n\Z")
            for index in (0, 2):
                torch.testing.assert_close(answers[index], module(x, x, x, mask).detach(), rtol=1e-5, atol=1e-6)

    def test_files_that_cannot_be_used_are_named(self):
        _, archive = self.export("shared_projection", "portable")
        other = self.folder / "other.pt"
        torch.jit.script(torch.nn.Linear(2, 2)).save(other)
        absent, bad = self.folder / "absent.pt", self.folder / "bad.pt"
        bad.write_bytes(b"no archive")
        package = self.folder / "absent.pt2"
        bad.with_suffix(".pt2").write_bytes(b"no package")
        torch.save({"a": 1}, self.folder / "dict.pt")
        for words, said in ((["load", absent], "[serve] model: expected a TorchScript archive, got"),
                            (["load", bad], "[serve] model: expected a TorchScript archive, got"),
                            (["load", other], "[serve] model: expected an archive of `self-attention export`"),
                            (["load", archive, "--lengths", 9, 3], "[serve] --lengths: expected the shorter one first"),
                            (["load", archive, "--threads", 0], "--threads"),
                            (["load", package, "--requests", 1], "[serve] model: expected a package of AOTInductor"),
                            (["load", bad.with_suffix(".pt2")], "[serve] model: expected a package of AOTInductor"),
                            (["answer", archive, absent, bad], "[serve] requests: expected a file that can be read"),
                            (["answer", archive, bad, absent], "[serve] requests: expected a list of lists of tensors"),
                            (["answer", archive, self.folder / "dict.pt", absent], "[serve] requests: expected a list")):
            run = serve(*words)
            self.assertEqual(run.returncode, 2, words)
            self.assertIn(said, run.stderr)
        self.assertFalse(absent.exists())

    def test_a_full_queue_refuses_and_loses_nothing(self):
        _, archive = self.export("shared_projection", "fused")
        found = self.measure(archive, "--flood", "--queue", 4, "--requests", 2000, "--lengths", 64, 128)
        self.assertGreater(int(found["refused"]), 0)
        self.assertGreater(int(found["answered"]), 0)
        self.assertEqual(int(found["refused"]) + int(found["answered"]), 2000)
        self.assertEqual(found["message"], "[serve] queue: expected fewer than 4 waiting requests, got 4; try again later")

    def test_memory_is_flat_over_many_requests(self):
        for ops in KINDS:
            _, archive = self.export("shared_projection", ops)
            direct = ["--direct"] if ops == "fused" else []  # which does what the module does
            found = self.measure(archive, "--requests", 20000, *direct)
            print(ops, found, flush=True)
            self.assertEqual((found["answered"], found["refused"]), ("20000", "0"))
            early, late = (float(found[f"MiB {when}"]) for when in ("after a quarter", "at the end"))
            self.assertLess(late - early, 8)
            if direct:
                self.assertGreater(float(found["served by direct"]), 0)


if __name__ == "__main__":
    build()
    unittest.main()
