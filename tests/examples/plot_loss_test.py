"""plot_loss.py on curves that fit and that do not: plot_loss_test.py"""

import importlib.util
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "plot_loss.py"
sys.path[:0] = [str(SCRIPT.parent), str(ROOT / "tests" / "support")]
HEADER = "step,loss,validation_loss,learning_rate,tokens_per_second,seconds\n"

import plot_loss
from folder_test import FolderTest


class PlotLossTest(FolderTest):
    def write(self, text):
        path = self.folder / "loss.csv"
        path.write_text(text)
        return str(path)

    def run_script(self, *arguments):
        return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True)

    def test_a_curve_is_read(self):
        path = self.write(HEADER + "1,4.5,,0.1,10.0,0.5\n2,4.25,4.375,0.1,10.0,1.0\n")
        curve = plot_loss.read_curve(f"ours={path}")
        self.assertEqual((curve.name, curve.steps, curve.losses), ("ours", [1, 2], [4.5, 4.25]))
        self.assertEqual((curve.seconds, curve.validation), ([0.5, 1.0], [(1, 4.375)]))
        self.assertEqual(plot_loss.read_curve(path).name, path)

    def test_means(self):
        self.assertEqual(plot_loss.smoothed([4.0, 2.0, 6.0, 0.0], 2), [4.0, 3.0, 4.0, 3.0])
        self.assertEqual(plot_loss.smoothed([4.0, 2.0], 1), [4.0, 2.0])

    def test_what_does_not_fit_is_refused(self):
        for text, message in ((HEADER, "expected a row for each step, got none"),
                              ("a,b\n1,2\n", "expected columns step"),
                              (HEADER + "1,x,,0.1,10.0,0.5\n", "expected columns step"),
                              (HEADER + "1\n", "expected columns step")):
            run = self.run_script(self.write(text))
            self.assertEqual(run.returncode, 2, run.stderr)
            self.assertIn(message, run.stderr)
            self.assertNotIn("Traceback", run.stderr)
        self.assertIn("cannot be read", self.run_script(str(self.folder / "absent")).stderr)

    def test_it_draws_or_says_what_it_lacks(self):
        picture = self.folder / "out.png"
        run = self.run_script(self.write(HEADER + "1,4.5,4.5,0.1,10.0,0.5\n"), "--png", str(picture), "--smooth", "3")
        if importlib.util.find_spec("matplotlib"):
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            self.assertEqual(picture.read_bytes()[:4], b"\x89PNG")
        else:
            self.assertEqual(run.returncode, 2)
            self.assertIn("pip install matplotlib", run.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
