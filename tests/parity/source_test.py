"""Tests of export_reference.py --source: class files that work, and those that are refused."""

import json
import sys
import unittest
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from export_support import USER_MODULE, FolderTest, run_export

# After export_support, which puts scripts on the import path.
import reference_cases  # isort: skip
from reference_run import evaluate
from reference_source import load_source, our_source


class UserClassTest(FolderTest):
    def refuse(self, text, *words, variant="shared_projection", suffix=""):
        """A class file that ends in a message with the words, and status 2."""
        path = self.write("user.py", text)
        status, stdout, stderr = run_export(
            "--out", self.folder / "out", "--variant", variant, "--source", f"{path}{suffix}"
        )
        self.assertEqual((status, stdout), (2, ""))
        for word in ("export_reference: ", *words):
            self.assertIn(word, stderr)
        self.assertEqual(stderr.count("\n"), 1, stderr)

    def test_our_example_is_bit_equal_to_the_statement(self):
        source = load_source("shared_projection", f"{USER_MODULE}:CrossAttention")
        ours = our_source("shared_projection")
        for case in reference_cases.grid("shared_projection"):
            if not case.refused:
                expected = evaluate(case, ours, ours, seed=0).entry
                self.assertEqual(evaluate(case, source, ours, seed=0).entry, expected)

    def test_the_command_takes_our_example(self):
        out, stdout = self.export(
            "--variant", "shared_projection", "--filter", "float32/causal",
            "--source", f"{USER_MODULE}:CrossAttention",
        )  # fmt: skip
        self.assertIn("of CrossAttention in user_module.py", stdout)
        sources = json.loads((out / "manifest.json").read_text())["sources"]
        self.assertEqual(
            sources["shared_projection"], {"file": "user_module.py", "class": "CrossAttention"}
        )

    def test_which_class_is_meant(self):
        source = USER_MODULE.read_text()
        self.refuse(source, "no torch.nn.Module class SelfAttention", "FeedForward, CrossAttention")
        self.refuse(source, "no torch.nn.Module class Missing", suffix=":Missing")
        alone = source.replace("class FeedForward(torch.nn.Sequential)", "class FeedForward")
        default = source + "\nclass SelfAttention(CrossAttention): pass\n"
        for text, expected in ((alone, "CrossAttention"), (default, "SelfAttention")):
            loaded = load_source("shared_projection", str(self.write("user.py", text)))
            self.assertEqual(loaded.cls.__name__, expected)

    def test_files_that_do_not_load(self):
        self.refuse("import torch\nraise SystemExit(3)", "running it raised SystemExit: 3")
        self.refuse("def broken(:", "running it raised SyntaxError")
        self.refuse("import no_such_module_at_all", "no_such_module_at_all")
        self.refuse("x = 1", "its classes: none")

    def test_wrong_parameter_names(self):
        source = USER_MODULE.read_text() + "\nSelfAttention = CrossAttention\n"
        renamed = source.replace("fc_out", "proj")
        self.refuse(renamed, "missing fc_out.weight (8, 8)", "unexpected proj.bias (8,)")
        wide = source.replace("Linear(self.per_head, self.per_head", "Linear(width, width")
        self.refuse(wide, "keys.weight is (8, 8) instead of (4, 4)")
        self.refuse(source, "missing q_linear.weight (8, 8)", variant="full_projection")

    def test_constructor_and_forward_that_do_not_fit(self):
        source = USER_MODULE.read_text() + "\nSelfAttention = CrossAttention\n"
        three = source.replace("n_heads: int)", "n_heads: int, depth)")
        self.refuse(three, "its constructor is called with (embed_size, heads)", "depth")
        signature = "context_values, context_keys, x, mask=None"
        for other in ("x", "x, mask=None", f"{signature}, *, bias", "a, b, c, mask, bias"):
            self.refuse(source.replace(signature, other), "forward is called with", other)
        pair = source.replace("return self.fc_out(", "return None, self.fc_out(")
        self.refuse(pair, "forward returned tuple, expected one tensor")

    def test_a_class_that_raises_keeps_what_is_owed(self):
        raising = USER_MODULE.read_text().replace(
            "        batch, length =",
            '        if x.size(1) == 130: raise RuntimeError("too long\\nfor me")\n'
            "        batch, length =",
        )
        path = self.write("raising.py", raising)
        out, stdout = self.export(
            "--variant", "shared_projection", "--source", f"{path}:CrossAttention",
            "--filter", "q130-",
        )  # fmt: skip
        self.assertIn("warning: the class raised in 7 cases", stdout)
        for case in json.loads((out / "manifest.json").read_text())["cases"]:
            self.assertEqual(case["owes"], "equal")
            self.assertEqual(case["source_error"], "RuntimeError: too long")
            self.assertNotIn("output", case["tensors"])

    def test_what_a_class_can_run_is_read_from_its_forward(self):
        base = (
            "from reference_modules import FullProjectionAttention as Base\n"
            "class SelfAttention(Base):\n"
        )
        cases = {case.label + case.kind: case for case in reference_cases.grid("full_projection")}
        alone = cases["n2-q5-k5-e12-h3-alonecausal"]
        separate = next(case for case in cases.values() if len(case.inputs) == 3)
        for text, takes_keys, optional_keys, takes_mask in (
            (" def forward(self, x, mask=None): return super().forward(x, mask=mask)", 0, 0, 1),
            (" def forward(self, x): return super().forward(x)", 0, 0, 0),
            (" def forward(self, v, k, q): return super().forward(v, k, q)", 1, 0, 0),
            (" pass", 1, 1, 1),
        ):
            with self.subTest(text):
                source = load_source("full_projection", str(self.write("own.py", base + text)))
                self.assertTrue(source.many_heads)
                self.assertEqual(
                    (source.takes_keys, source.optional_keys, source.takes_mask),
                    (bool(takes_keys), bool(optional_keys), bool(takes_mask)),
                )
                spelled_out = takes_keys and not optional_keys
                self.assertEqual(len(source.arguments(alone)), 3 if spelled_out else 1)
                rule = source.departure(replace(separate, mask=None))
                self.assertEqual(rule, None if takes_keys else "001 with separate inputs")


if __name__ == "__main__":
    unittest.main()
