"""Archives that call the library's ops, with the library and without:
torchscript_fused_test.py TORCHSCRIPT_PROBE SELF_ATTENTION_BINARY FUSED_ARCHIVE_RUNNER ARCHIVE_RUNNER LIBRARY
"""

import subprocess
import sys
import unittest

import torch
from archives import (FORMS, MASK, export_forms, make_class, make_inputs, run_program, same_bits,
                      write_weights)
from folder_test import FolderTest

PROBE, TOOL, RUNNER, BARE_RUNNER, LIBRARY = sys.argv[1:6]
del sys.argv[1:6]
torch.ops.load_library(LIBRARY)
OPS = torch.ops.self_attention


def call_op(variant, module, tensors, mask):
    """The functional form of the class."""
    tensors = tensors if len(tensors) == 3 else (*tensors, None, None)
    return getattr(OPS, f"{variant}_attention")(*tensors, mask, *module.parameters(), 2)


class FusedTest(FolderTest):
    def export_forms(self, forms):
        return export_forms(self, PROBE, forms, ops="fused")

    def export(self, variant, **form):
        return self.export_forms([(variant, form)])[0]

    def test_an_archive_is_the_op_in_every_form(self):
        given = {"required": [MASK], "none": [None], "optional": [MASK, None]}
        forms = [(variant, {"inputs": inputs, "mask": mask, "freeze": freeze})
                 for variant, inputs in FORMS for mask in given for freeze in (False, True)]
        for (variant, form), (module, file) in zip(forms, self.export_forms(forms)):
            with self.subTest(variant, **form):
                archive = torch.jit.load(file)
                self.assertEqual(torch.jit.export_opnames(archive), [f"self_attention::{variant}_attention"])
                tensors = make_inputs(form["inputs"])
                for mask in given[form["mask"]]:
                    arguments = [*tensors, *([] if mask is None else [mask])]
                    with torch.no_grad():
                        expected = call_op(variant, module, tensors, mask)
                        for _ in range(3):
                            self.assertTrue(same_bits(archive(*arguments), expected))

    def test_arguments_and_parameters_have_their_names(self):
        module, file = self.export("inferred_length", mask="optional")
        archive = torch.jit.load(file)
        self.assertIn("Tensor values, Tensor keys, Tensor queries, Tensor? mask=None", str(archive.forward.schema))
        self.assertEqual(list(archive.state_dict()), list(module.state_dict()))

    def test_a_program_that_links_the_library_runs_them(self):
        forms = [(variant, {"inputs": inputs, "freeze": freeze})
                 for variant, inputs in FORMS for freeze in (False, True)]
        for form, (_, file) in zip(forms, self.export_forms(forms)):
            tensors = [*make_inputs(form[1]["inputs"]), MASK]
            output = torch.jit.load(file)(*tensors)
            run = run_program(RUNNER, file, tensors, output)
            self.assertEqual((run.returncode, run.stderr), (0, ""), form)

    def test_without_the_library_the_error_tells_what_to_load(self):
        load = "import sys, torch; torch.jit.load(sys.argv[1])"
        for freeze in (False, True):
            _, file = self.export("shared_projection", freeze=freeze)
            commands = [[BARE_RUNNER, file, file], [sys.executable, "-c", load, file]]
            for command in commands[: 1 if freeze else 2]:
                run = subprocess.run(command, capture_output=True, text=True)
                self.assertNotEqual(run.returncode, 0)
                self.assertIn("Unknown builtin op: self_attention::shared_projection_attention", run.stderr)
                self.assertIn("load_libself_attention_so_before_this_archive", run.stderr)

    def test_python_freezes_saves_and_trains_them(self):
        module, file = self.export("shared_projection")
        archive = torch.jit.load(file)
        tensors = make_inputs()
        for _ in range(3):
            found, expected = (
                torch.autograd.grad(output.square().sum(), list(model.parameters()))
                for model, output in ((archive, archive(*tensors, MASK)),
                                      (module, call_op("shared_projection", module, tensors, MASK)))
            )
            self.assertTrue(all(map(same_bits, found, expected)))
        frozen = torch.jit.freeze(archive.eval())
        frozen.save(self.folder / "frozen.pt")
        again = torch.jit.load(self.folder / "frozen.pt")
        with torch.no_grad():
            self.assertTrue(same_bits(again(*tensors, MASK), archive(*tensors, MASK)))

    def test_the_command_and_inspect_tell_what_to_load(self):
        module = make_class("shared_projection")
        weights = write_weights(module.state_dict(), self.folder / "weights.safetensors")
        out = self.folder / "model.pt"
        words = [TOOL, "export", "--variant", "shared_projection", "--weights", weights, "--ops", "fused"]
        told = subprocess.run([*words, "--out", out, "--triton", self.folder / "models"],
                              capture_output=True, text=True, check=True).stdout
        self.assertIn("\nneeds libself_attention.so, loaded before the archive", told)
        shown = subprocess.run([TOOL, "inspect", out], capture_output=True, text=True, check=True).stdout
        self.assertIn('metadata "ops": "fused"', shown)
        self.assertIn('metadata "needs": "libself_attention.so, loaded before', shown)
        config = (self.folder / "models" / "shared_projection" / "config.pbtxt").read_text()
        self.assertRegex(config, r"\A# needs libself_attention.so.*LD_PRELOAD.*\nname: ")


if __name__ == "__main__":
    unittest.main()
