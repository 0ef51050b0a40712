"""A test with a folder of its own."""

import tempfile
import unittest
from pathlib import Path


class FolderTest(unittest.TestCase):
    """`folder` goes, with all in it, when the test ends."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
