"""`self-attention export` as a user meets it, and its archives in Python and in a program that links
LibTorch alone: torchscript_test.py TORCHSCRIPT_PROBE SELF_ATTENTION_BINARY ARCHIVE_RUNNER
"""

import re
import resource
import signal
import subprocess
import sys
import unittest
import warnings

import torch
from archives import (FORMS, MASK, export_all, export_forms, make_class, make_inputs, run_program,
                      same_bits, write_weights)
from folder_test import FolderTest

from reference_spec import VARIANTS

PROBE, TOOL, RUNNER = sys.argv[1:4]
del sys.argv[1:4]


def call_class(module, tensors, mask):
    return module(*tensors, mask=mask)


class ExportTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.out = self.folder / "model.pt"

    def run_tool(self, *words, **options):
        return subprocess.run([TOOL, *map(str, words)], capture_output=True, text=True, **options)

    def export(self, *words):
        run = self.run_tool("export", *words)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        return run.stdout

    def refused(self, words, *texts, **options):
        """The command ends with 2, names what is wrong, and leaves the folder as it was."""
        before = sorted(self.folder.rglob("*"))
        run = self.run_tool("export", *words, **options)
        self.assertEqual((run.returncode, run.stdout), (2, ""), run.stderr)
        for text in texts:
            self.assertIn(text, run.stderr)
        self.assertNotIn("Exception raised from", run.stderr)
        self.assertEqual(sorted(self.folder.rglob("*")), before)

    def all_refused(self, *cases):
        """As refused() for many (words, text) in one process, which throws what the command prints."""
        before = sorted(self.folder.rglob("*"))
        answers = export_all(PROBE, [map(str, words) for words, _ in cases])
        self.assertEqual(len(answers), len(cases))
        for answer, (words, text) in zip(answers, cases):
            self.assertIn(text, answer, words)
            self.assertNotIn("Exception raised from", answer)
        self.assertEqual(sorted(self.folder.rglob("*")), before)

    def weights(self, variant="shared_projection", **options):
        module = make_class(variant, **options)
        path = self.folder / ("-".join(map(str, (variant, *options.values()))) + ".safetensors")
        return module, write_weights(module.state_dict(), path)

    def archives(self, forms):
        """For each (variant, form) the class and its exported archive, loaded and as a file."""
        return [(module, torch.jit.load(out), out) for module, out in export_forms(self, PROBE, forms)]

    def archive(self, variant, **form):
        """The class and its exported archive, loaded."""
        return self.archives([(variant, form)])[0][:2]


class Archives(ExportTest):
    def test_arguments_come_in_pythons_order_R50(self):
        made = self.archives([(variant, {"inputs": inputs}) for variant, inputs in FORMS])
        for (variant, inputs), (module, archive, _) in zip(FORMS, made):
            with self.subTest(variant, inputs=inputs):
                names = [a.name for a in archive.forward.schema.arguments[1:]]
                owed = ["x"] if inputs == "single" else [*VARIANTS[variant].arguments]
                self.assertEqual(names, [*owed, "mask"])
                tensors = make_inputs(inputs)
                expected = call_class(module, tensors, MASK)
                self.assertTrue(same_bits(archive(*tensors, MASK), expected))
                by_name = dict(zip(names, [*tensors, MASK]))
                self.assertTrue(same_bits(archive(**by_name), expected))

    def test_plain_signatures_have_no_optional_R49(self):
        forms = [(variant, {"inputs": inputs, "mask": mask})
                 for variant, inputs in FORMS for mask in ("required", "none")]
        for form, (_, archive, _) in zip(forms, self.archives(forms)):
            types = {str(a.type) for a in archive.forward.schema.arguments[1:]}
            self.assertEqual(types, {"Tensor"}, form)
        _, archive = self.archive("shared_projection", mask="optional")
        self.assertIn("Tensor? mask=None", str(archive.forward.schema))

    def test_an_optional_mask_takes_none_R51(self):
        module, archive = self.archive("shared_projection", mask="optional")
        tensors = make_inputs()
        expected = call_class(module, tensors, None)
        self.assertTrue(same_bits(archive(*tensors), expected))
        self.assertTrue(same_bits(archive(*tensors, None), expected))
        self.assertTrue(same_bits(archive(*tensors, mask=MASK), call_class(module, tensors, MASK)))
        _, required = self.archive("shared_projection")
        with self.assertRaisesRegex(torch.jit.Error, r"\] mask: expected"):
            required(*tensors, None)

    def test_operators_are_the_portable_ones_R53_R54(self):
        listed = subprocess.run([PROBE, "--operators"], capture_output=True, text=True, check=True)
        portable = {line.partition("(")[0] for line in listed.stdout.splitlines()}
        forms = [(variant, {"inputs": inputs, "mask": mask})
                 for variant, inputs in FORMS for mask in ("required", "none", "optional")]
        for form, (_, archive, _) in zip(forms, self.archives(forms)):
            self.assertLessEqual(set(torch.jit.export_opnames(archive)), portable, form)

    def test_a_program_without_this_library_runs_them_R55(self):
        needed = subprocess.run(["ldd", RUNNER], capture_output=True, text=True, check=True).stdout
        self.assertNotIn("libself_attention", needed)
        forms = [(variant, {"inputs": inputs, "freeze": freeze})
                 for variant, inputs in FORMS for freeze in (False, True)]
        for form, (_, archive, file) in zip(forms, self.archives(forms)):
            tensors = [*make_inputs(form[1]["inputs"]), MASK]
            run = run_program(RUNNER, file, tensors, archive(*tensors))
            self.assertEqual((run.returncode, run.stderr), (0, ""), form)

    def test_first_calls_agree_R59(self):
        module, archive = self.archive("shared_projection")
        with torch.no_grad():
            for length in (5, 5, 5, 5, 5, 1, 9, 2):
                x = torch.randn(2, length, 8)
                mask = torch.ones(length, length).tril()
                self.assertTrue(same_bits(archive(x, x, x, mask), module(x, x, x, mask)))

    def test_parameters_go_back_into_the_class(self):
        made = self.archives([(variant, {}) for variant in VARIANTS])
        for variant, (module, archive, _) in zip(VARIANTS, made):
            state = archive.state_dict()
            self.assertEqual(list(state), list(module.state_dict()))
            other = make_class(variant)
            torch.nn.init.zeros_(next(other.parameters()))
            other.load_state_dict(state, strict=True)
            for name, tensor in module.state_dict().items():
                self.assertTrue(same_bits(other.state_dict()[name], tensor), name)

    def test_an_archive_is_weights_for_another(self):
        [(module, _, file)] = self.archives([("shared_projection", {})])
        self.export("--variant", "shared_projection", "--weights", file,
                    "--mask", "none", "--out", self.folder / "second.pt")
        tensors = make_inputs()
        second = torch.jit.load(self.folder / "second.pt")
        self.assertTrue(same_bits(second(*tensors), call_class(module, tensors, None)))

    def test_python_freezes_saves_and_trains_them(self):
        module, archive = self.archive("shared_projection")
        tensors = make_inputs()
        expected = call_class(module, tensors, MASK)
        frozen = torch.jit.freeze(archive.eval(), optimize_numerics=False)
        frozen.save(self.folder / "frozen.pt")
        again = torch.jit.load(self.folder / "frozen.pt")
        self.assertTrue(same_bits(again(*tensors, MASK), expected))
        for step in range(3):
            for model in (module, archive):
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                optimizer.zero_grad()
                model(*tensors, MASK).square().sum().backward()
                optimizer.step()
            for ours, owed in zip(archive.parameters(), module.parameters()):
                self.assertTrue(same_bits(ours, owed), step)

    def test_refusals_name_module_and_argument(self):
        _, archive = self.archive("inferred_length")
        x = torch.ones(2, 5, 8)
        for call, text in (
            (lambda: archive(x, x, x, torch.ones(2, 5)), r"\[InferredLengthAttention\] mask: expected"),
            (lambda: archive(x, x[:, :, :3], x, MASK), r"\[InferredLengthAttention\] keys: expected a mul"),
            (lambda: archive(x[:, :4], x, x, MASK), r"\[InferredLengthAttention\] values: expected as many"),
        ):
            for _ in range(3):
                with self.assertRaisesRegex(torch.jit.Error, text):
                    call()


class Command(ExportTest):
    def test_sizes_are_told_by_the_weights(self):
        for variant, embed, heads in (("shared_projection", 12, 3), ("inferred_length", 7, 3)):
            _, weights = self.weights(variant, embed=embed, heads=heads)
            text = self.export("--variant", variant, "--weights", weights, "--out", self.out)
            self.assertIn(f"embed {embed}, heads {heads}, float32", text)
            text = self.run_tool("inspect", self.out).stdout
            for line in (f'"embed": "{embed}"', f'"heads": "{heads}"', f'"variant": "{variant}"',
                         '"mask": "required"', '"frozen": "false"', '"torch_version": "2.'):
                self.assertIn(line, text)
        _, weights = self.weights("full_projection")
        words = ("--variant", "full_projection", "--weights", weights, "--out", self.out)
        self.export(*words, "--heads", 4)
        self.out.unlink()
        self.refused(words, "--heads: expected a number", "FullProjectionAttention")

    def test_the_dtype_is_that_of_the_weights(self):
        for dtype in (torch.float64, torch.bfloat16, torch.float16):
            module, weights = self.weights(dtype=dtype)
            self.export("--variant", "shared_projection", "--weights", weights, "--out", self.out)
            archive = torch.jit.load(self.out)
            self.assertEqual({p.dtype for p in archive.parameters()}, {dtype})

    def test_layers_of_larger_models(self):
        module = make_class("shared_projection")
        first, second = ({f"{at}.{n}": t for n, t in module.state_dict().items()}
                         for at in ("encoder.attn", "decoder.attn"))
        torch.save({"ema": {**first, "norm.weight": torch.ones(3)}}, self.folder / "one.pt")
        torch.save({**first, **second}, self.folder / "two.pt")
        words = ("--variant", "shared_projection", "--out", self.out, "--weights")
        tensors = make_inputs()
        for more in ((self.folder / "one.pt", "--key", "ema"),
                     (self.folder / "two.pt", "--prefix", "decoder.attn.")):
            self.export(*words, *more)
            self.assertTrue(same_bits(torch.jit.load(self.out)(*tensors, MASK),
                                      call_class(module, tensors, MASK)))
            self.out.unlink()
        self.refused((*words, self.folder / "two.pt"), "--prefix: expected one of",
                     '"decoder.attn."', '"encoder.attn."')
        self.refused((*words, self.folder / "two.pt", "--prefix", "other."),
                     'expected parameters of SharedProjectionAttention that begin with "other."')

    def test_what_does_not_fit_is_refused(self):
        _, shared = self.weights("shared_projection")
        _, uneven = self.weights("inferred_length", embed=7, heads=3)
        (self.folder / "text.pt").write_text("no tensors here, only words, and enough of them")
        integers = {name: tensor.long() for name, tensor in make_class("shared_projection").state_dict().items()}
        write_weights(integers, self.folder / "integers.safetensors")

        def words(variant, weights, *more):
            return ("--variant", variant, "--weights", weights, "--out", self.out, *more)

        self.refused(words("shared_projection", uneven), "expected parameters of SharedProjectionAttention")
        self.refused(words("shared_projection", shared, "--embed", 0), "--embed")
        self.all_refused(
            (words("full_projection", shared), "expected parameters of FullProjectionAttention"),
            (words("shared_projection", shared, "--inputs", "single"), "--inputs: expected separate"),
            (words("shared_projection", shared, "--heads", 3), "heads: expected a divisor"),
            (words("shared_projection", shared, "--heads", 4), "values.weight: expected float32 (2, 2)"),
            (words("shared_projection", shared, "--embed", 16), "fc_out.bias"),
            (words("shared_projection", shared, "--mask", "perhaps"), "--mask"),
            (words("attention", shared), "--variant"),
            (words("shared_projection", self.folder / "absent.pt"), "absent.pt"),
            (words("shared_projection", self.folder / "text.pt"), "text.pt"),
            (words("shared_projection", self.folder / "integers.safetensors"), "int64"),
            (words("shared_projection", shared)[:4], "--out"),
            ((*words("shared_projection", shared)[:4], "--out", self.folder / "no" / "model.pt"), "no/model.pt"))


class Triton(ExportTest):
    def words(self, variant, *more, inputs="separate", dtype=torch.float32):
        _, weights = self.weights(variant, dtype=dtype)
        return ("--variant", variant, "--weights", weights, "--heads", 2, "--inputs", inputs,
                "--triton", self.folder / "models", *more)

    def repository(self, *words):
        self.export(*self.words("shared_projection", *words))
        return self.folder / "models" / "shared_projection"

    def test_the_configuration_is_as_the_server_reads_it(self):
        self.export(*self.words("inferred_length", "--triton-name", "attention.v2"))
        model = self.folder / "models" / "attention.v2"
        self.assertEqual(sorted(p.relative_to(model).as_posix() for p in model.rglob("*")),
                         ["1", "1/model.pt", "config.pbtxt"])
        self.assertEqual((model / "config.pbtxt").read_text(), """\
name: "attention.v2"
platform: "pytorch_libtorch"
backend: "pytorch"
max_batch_size: 8
input [
  { name: "values" data_type: TYPE_FP32 dims: [ -1, 8 ] },
  { name: "keys" data_type: TYPE_FP32 dims: [ -1, 8 ] },
  { name: "queries" data_type: TYPE_FP32 dims: [ -1, 8 ] },
  { name: "mask" data_type: TYPE_BOOL dims: [ -1, -1, -1 ] }
]
output [
  { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1, 8 ] }
]
dynamic_batching { }
model_warmup [
  {
    name: "first_calls"
    batch_size: 1
    count: 3
    inputs { key: "values" value: { data_type: TYPE_FP32 dims: [ 16, 8 ] zero_data: true } }
    inputs { key: "keys" value: { data_type: TYPE_FP32 dims: [ 16, 8 ] zero_data: true } }
    inputs { key: "queries" value: { data_type: TYPE_FP32 dims: [ 16, 8 ] zero_data: true } }
    inputs { key: "mask" value: { data_type: TYPE_BOOL dims: [ 1, 1, 1 ] zero_data: true } }
  }
]
""")

    def test_inputs_are_forwards_and_the_warm_up_runs_R49_R50_R59(self):
        types = {"TYPE_FP64": torch.float64, "TYPE_FP32": torch.float32, "TYPE_FP16": torch.float16,
                 "TYPE_BOOL": torch.bool}
        kinds = (("required", 8, torch.float16), ("none", 0, torch.float64))
        models = [(*form, *kind) for form in FORMS for kind in kinds]
        jobs = [self.words(variant, "--mask", mask, "--max-batch-size", batch, "--triton-name", f"model{index}",
                           inputs=inputs, dtype=dtype)
                for index, (variant, inputs, mask, batch, dtype) in enumerate(models)]
        self.assertEqual(export_all(PROBE, [map(str, words) for words in jobs]), ["ok"] * len(jobs))
        for index, (*_, batch, _) in enumerate(models):
            model = self.folder / "models" / f"model{index}"
            text = (model / "config.pbtxt").read_text()
            archive = torch.jit.load(model / "1" / "model.pt")
            arguments = archive.forward.schema.arguments[1:]
            self.assertEqual({str(a.type) for a in arguments}, {"Tensor"})
            declared = re.findall(r'name: "(\w+)" data_type: (\w+) dims: \[ ([-\d, ]+) \]', text)
            self.assertEqual([name for name, *_ in declared[:-1]], [a.name for a in arguments])
            calls = re.findall(r'key: "(\w+)" value: { data_type: (\w+) dims: \[ ([\d, ]+) \]', text)
            request = {}
            for (name, kind, dims), (key, warm_kind, warm_dims) in zip(declared, calls):
                self.assertEqual((key, warm_kind), (name, kind))
                sizes = [int(size) for size in warm_dims.split(",")]
                self.assertEqual(len(sizes), len(dims.split(",")))
                shape = sizes if batch == 0 else [1, *sizes]
                request[name] = torch.zeros(shape, dtype=types[kind])
            for _ in range(3):
                output = archive(**request)
            self.assertEqual(output.dtype, types[declared[-1][1]])
            self.assertEqual(output.dim(), len(declared[-1][2].split(",")) + (batch > 0))

    def test_uneven_heads_warm_up_with_a_length_that_divides(self):
        _, weights = self.weights("inferred_length", embed=7, heads=3)
        self.export("--variant", "inferred_length", "--weights", weights, "--mask", "none",
                    "--triton", self.folder / "models")
        text = (self.folder / "models" / "inferred_length" / "config.pbtxt").read_text()
        length = int(re.search(r'key: "values" .* dims: \[ (\d+), 7 \]', text).group(1))
        archive = torch.jit.load(self.folder / "models" / "inferred_length" / "1" / "model.pt")
        x = torch.zeros(1, length, 7)
        self.assertEqual(archive(x, x, x).shape[2], 7)

    def test_a_model_is_replaced(self):
        self.repository()
        model = self.repository("--mask", "none")
        self.assertNotIn("mask", (model / "config.pbtxt").read_text())
        self.assertEqual(len(torch.jit.load(model / "1" / "model.pt").forward.schema.arguments), 4)

    def test_what_the_server_cannot_run_is_refused(self):
        _, weights = self.weights()
        words = ("--variant", "shared_projection", "--weights", weights, "--triton", self.folder / "models")
        self.refused((*words, "--mask", "optional"), "--triton: expected --mask required or none, got optional")
        self.refused((*words, "--triton-name", "a\nb"), "--triton-name")
        (self.folder / "file").write_text("")
        _, narrow = self.weights(dtype=torch.bfloat16)
        self.all_refused(
            *(((*words, "--triton-name", name), "--triton-name: expected")
              for name in ("a/b", "..", ".hidden", 'a"b')),
            ((*words, "--max-batch-size", -1), "--max-batch-size"),
            ((*words[:-1], self.folder / "file"), "file"),
            ((*words[:2], "--weights", narrow, *words[4:]), "bfloat16"))

    def test_a_full_disk_leaves_nothing(self):
        def little_space():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

        _, weights = self.weights()
        self.refused(("--variant", "shared_projection", "--weights", weights, "--triton",
                      self.folder / "new" / "models"), "writing failed", preexec_fn=little_space)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    unittest.main(warnings="ignore")
