"""What the tests of the exporter share: running it, and folders to run it in.

SELF_ATTENTION_DOCUMENTS names the folder of the public classes, document_000.py to
document_002.py; the default is shared/documents beside the repository.
"""

import contextlib
import io
import os
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
USER_MODULE = ROOT / "tests" / "parity" / "user_module.py"
DOCUMENTS = Path(os.environ.get("SELF_ATTENTION_DOCUMENTS", ROOT.parent / "shared" / "documents"))
sys.path[:0] = [str(SCRIPTS), str(ROOT / "tests" / "support")]

import export_reference
import folder_test
from reference_spec import VARIANTS

needs_documents = unittest.skipUnless(
    (DOCUMENTS / "document_000.py").is_file(),
    f"no document_000.py in {DOCUMENTS}; set SELF_ATTENTION_DOCUMENTS",
)


def document(variant_name):
    return str(DOCUMENTS / f"document_{VARIANTS[variant_name].document}.py")


def run_export(*arguments):
    """(exit status, stdout, stderr) of the exporter in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = export_reference.main([str(argument) for argument in arguments])
        except SystemExit as error:  # argparse's
            status = error.code
    return status, out.getvalue(), err.getvalue()


class FolderTest(folder_test.FolderTest):
    """A test with a folder of its own to export into."""

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def export(self, *arguments):
        """Exports into the folder `out`, which must succeed. (the folder, stdout)"""
        out = self.folder / "out"
        status, stdout, stderr = run_export("--out", out, *arguments)
        self.assertEqual((status, stderr), (0, ""))
        return out, stdout
