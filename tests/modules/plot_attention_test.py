"""Tests of scripts/plot_attention.py; what draws is skipped where matplotlib is not installed."""

import contextlib
import importlib.util
import io
import sys
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "support")]

import plot_attention
import safetensors.torch
import torch
from folder_test import FolderTest

needs_matplotlib = unittest.skipUnless(importlib.util.find_spec("matplotlib"), "no matplotlib")
PNG = b"\x89PNG"


def weights(*shape):
    return torch.softmax(torch.randn(shape, generator=torch.Generator().manual_seed(0)), -1)


class Plot(FolderTest):
    def setUp(self):
        super().setUp()
        self.whole = weights(2, 3, 4, 5)

    def save(self, name, content):
        path = self.folder / name
        if path.suffix == ".safetensors":
            safetensors.torch.save_file(content, path)
        else:
            torch.save(content, path)
        return path

    def run_script(self, *arguments):
        """(exit status, stdout, stderr)."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = plot_attention.main([str(argument) for argument in arguments])
            except SystemExit as error:  # argparse's
                status = error.code
        return status, out.getvalue(), err.getvalue()

    def drawn(self, *arguments):
        """What it passes on to be drawn: maps, names of queries, names of keys."""
        with mock.patch.object(plot_attention, "draw", return_value=PNG) as draw:
            status, _, err = self.run_script(*arguments)
        self.assertEqual((status, err), (0, ""))
        return draw.call_args.args

    def refused(self, words, *arguments):
        status, out, err = self.run_script(*arguments)
        self.assertEqual((status, out), (2, ""))
        self.assertRegex(err, words)
        self.assertEqual(list(self.folder.glob("*.png")), [])

    def test_every_head_of_an_item(self):
        for name in ("maps.safetensors", "maps.pt"):
            for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
                path = self.save(name, {"weights": self.whole.to(dtype)})
                maps, queries, keys = self.drawn(path, "--item", 1)
                self.assertEqual(list(maps), ["head 0", "head 1", "head 2"])
                self.assertIsNone(queries or keys)
                for head, matrix in enumerate(maps.values()):
                    self.assertEqual(matrix.dtype, torch.float32)
                    torch.testing.assert_close(matrix, self.whole[1, head].to(dtype).float())
                self.assertEqual(path.with_suffix(".png").read_bytes(), PNG)

    def test_some_heads_and_the_mean_of_all(self):
        maps, *_ = self.drawn(self.save("maps.pt", self.whole), "--heads", 2, 0, "--mean")
        self.assertEqual(list(maps), ["head 2", "head 0", "mean of 3 heads"])
        torch.testing.assert_close(maps["head 2"], self.whole[0, 2])
        torch.testing.assert_close(maps["mean of 3 heads"], self.whole[0].mean(0))

    def test_axes(self):
        for axes, (content, heads, first) in {
            "NQK": (self.whole[:, 0], [""], self.whole[0, 0]),
            "HQK": (self.whole[1], ["head 0", "head 1", "head 2"], self.whole[1, 0]),
            "QK": (self.whole[1, 2], [""], self.whole[1, 2]),
        }.items():
            path = self.save("maps.pt", content)
            maps, *_ = self.drawn(path, "--axes", axes)
            self.assertEqual(list(maps), heads)
            torch.testing.assert_close(maps[heads[0]], first)
            if axes != "HQK":  # what the number of axes says by itself
                self.assertEqual(list(self.drawn(path)[0]), heads)

    def test_a_tensor_by_its_name(self):
        for name in ("maps.safetensors", "maps.pth"):
            path = self.save(name, {"layer0": self.whole, "layer1": self.whole[:, :1] ** 0})
            maps, *_ = self.drawn(path, "--tensor", "layer1")
            torch.testing.assert_close(maps["head 0"], torch.ones(4, 5))
            (path.with_suffix(".png")).unlink()
            self.refused(r"--tensor: expected one of .*'layer0', 'layer1'; got none", path)
            self.refused(r"'layer0', 'layer1'; got 'layer2'", path, "--tensor", "layer2")

    def test_names(self):
        path = self.save("maps.pt", self.whole)
        file = self.folder / "names.txt"
        file.write_text("the\ncat of\n$x$\n猫\n", encoding="utf-8")
        _, queries, keys = self.drawn(path, "--query-labels", f"@{file}", "--key-labels", "a b c d e")
        self.assertEqual(queries, ["the", "cat of", "$x$", "猫"])
        self.assertEqual(keys, ["a", "b", "c", "d", "e"])
        square = self.save("square.pt", weights(2, 2))
        self.assertEqual(self.drawn(square, "--labels", "a b")[1:], (["a", "b"], ["a", "b"]))
        own = self.drawn(square, "--labels", "a b", "--key-labels", "c d")
        self.assertEqual(own[1:], (["a", "b"], ["c", "d"]))

    def test_names_that_do_not_fit_are_refused(self):
        path = self.save("maps.pt", self.whole)
        self.refused("--labels: expected 5 names, got 4", path, "--labels", "a b c d")
        self.refused("--query-labels: expected 4 names, got 0", path, "--query-labels", "")
        self.refused("No such file", path, "--key-labels", f"@{self.folder}/none.txt")
        (self.folder / "latin.txt").write_bytes(b"\xe9\n")
        self.refused("--labels: expected UTF-8", path, "--labels", f"@{self.folder}/latin.txt")

    def test_what_are_no_weights_is_refused(self):
        for content, words in (
            (weights(5), r"expected shape \(N, H, Q, K\), \(N, Q, K\) or \(Q, K\).*got \(5,\)"),
            (torch.ones(1, 2, 0, 3), r"no axis of 0, got \(1, 2, 0, 3\)"),
            (torch.ones(2, 2, dtype=torch.int64), "expected dense floating numbers, got torch.int64"),
            (torch.eye(2).to_sparse(), "expected dense floating numbers, got .*sparse"),
            (torch.tensor([[2.0, -1.0]]), "expected numbers from 0 to 1, got some from -1 to 2"),
            (torch.tensor([[float("inf"), 0.0]]), "expected numbers from 0 to 1"),
            ([self.whole], "expected a tensor or a dict of tensors, got list"),
            ({"step": 3}, "expected one of those in .*which has none"),
        ):
            with self.subTest(words):
                self.refused(words, self.save("maps.pt", content))

    def test_options_that_do_not_fit_are_refused(self):
        whole, mean = self.save("whole.pt", self.whole), self.save("mean.pt", self.whole.mean(1))
        self.refused("--item: expected 0 to 1, got 2", whole, "--item", 2)
        self.refused("--item: expected 0 to 1, got -1", whole, "--item", -1)
        self.refused("--heads: expected 0 to 2, got 3", whole, "--heads", 0, 3)
        self.refused("--mean: expected weights with an axis of heads", mean, "--mean")
        self.refused("--axes HQK reads", mean, "--heads", 0)
        self.refused("--item: expected 0 for HQK", mean, "--axes", "HQK", "--item", 1)
        self.refused(r"expected shape \(H, Q, K\)", whole, "--axes", "HQK")
        self.refused("one tensor, without a name", whole, "--tensor", "weights")
        self.refused("--png: expected a name that ends in .png", whole, "--png", "maps.jpg")

    def test_files_that_cannot_be_read_are_refused(self):
        self.refused("No such file", self.folder / "none.pt")
        self.refused("No such file", self.folder / "none.safetensors")
        for name in ("maps.pt", "maps.safetensors"):
            path = self.folder / name
            for content in (b"", b"no weights in here", self.save("whole.pt", self.whole).read_bytes()[:-40]):
                path.write_bytes(content)
                self.refused("cannot read .*maps", path)
        self.refused("ends in .safetensors, .pt or .pth", self.save("maps.bin", self.whole))

    def test_without_matplotlib_it_says_what_to_install(self):
        path = self.save("maps.pt", self.whole)
        with mock.patch.dict(sys.modules, {"matplotlib": None}):
            self.refused("matplotlib.*; drawing needs it: .* -m pip install matplotlib", path)

    def test_a_picture_is_written_whole_or_not_at_all(self):
        path, png = self.save("maps.pt", self.whole), self.folder / "maps.png"
        png.write_bytes(b"older")
        with mock.patch.object(plot_attention, "draw", return_value=PNG):
            with mock.patch("os.replace", side_effect=OSError("disk full")):
                status, _, err = self.run_script(path)
            self.assertEqual((status, err), (2, "plot_attention: disk full\n"))
            self.assertEqual(png.read_bytes(), b"older")
            status, _, err = self.run_script(path, "--png", self.folder / "none" / "maps.png")
            self.assertEqual(status, 2)
            self.assertIn("No such file", err)
        self.assertEqual({file.name for file in self.folder.iterdir()}, {"maps.pt", "maps.png"})

    def test_a_cell_of_several_weights_shows_the_largest(self):
        matrix = torch.zeros(1000, 7)
        matrix[123, 4] = 0.9
        matrix[700, 2] = float("nan")
        small = plot_attention.shrunk(matrix)
        self.assertEqual(small.shape, (plot_attention.MOST_CELLS, 7))
        self.assertEqual(small.nan_to_num(0).sum(0).tolist()[4] > 0, True)
        self.assertAlmostEqual(small[:, 4].max().item(), 0.9, places=6)
        self.assertTrue(small[:, 2].isnan().any())
        torch.testing.assert_close(plot_attention.shrunk(self.whole[0, 0]), self.whole[0, 0])

    @needs_matplotlib
    def test_draws(self):
        nothing = torch.full((2, 2), float("nan"))
        for content in (self.whole, weights(1, 3, 700, 20), nothing, weights(9, 9)):
            path = self.save("maps.pt", content)
            status, out, err = self.run_script(path, "--query-labels", "$ " * content.shape[-2])
            self.assertEqual((status, err), (0, ""))
            self.assertIn(f"{content.shape[-2]} queries and {content.shape[-1]} keys", out)
            self.assertEqual(path.with_suffix(".png").read_bytes()[:4], PNG)


if __name__ == "__main__":
    unittest.main(verbosity=2)
