"""The pages that Doxygen makes of the README and the public headers: api_pages_test.py BUILD_DIR

Doxygen warns of nothing, dead links included, and everything that the headers declare for users has text.
"""

import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = Path(sys.argv.pop(1)) / "api-pages"
DECLARED = (  # what the headers offer, as their text says it
    r"TORCH_ARG\([\w:]+, (\w+)\)",
    r"TORCH_MODULE\((\w+)\)",
    r"^ *(?:struct|class|enum class)(?: SELF_ATTENTION_API)? (\w+)",
    r"^SELF_ATTENTION_API [^;(]*?(\w+)\(",
    r"^  (k?[A-Z]\w+),? +///<",
    r"^  torch::nn::Linear (\w+)\{",
)


class ApiPages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        OUT.mkdir(parents=True, exist_ok=True)
        settings = (ROOT / "cmake" / "Doxyfile").read_text()
        settings += f'OUTPUT_DIRECTORY = "{OUT}"\nGENERATE_XML = YES\n'
        cls.doxygen = subprocess.run(["doxygen", "-"], input=settings, cwd=ROOT, capture_output=True, text=True)
        cls.documented = {}
        for file in (OUT / "xml").glob("*.xml"):
            for element in ElementTree.parse(file).getroot().iter():
                if element.tag in ("compounddef", "memberdef", "enumvalue"):
                    name = element.findtext("name") or element.findtext("compoundname")
                    text = "".join("".join(part.itertext()) for tag in ("briefdescription", "detaileddescription")
                                   for part in element.findall(tag)).strip()
                    cls.documented.setdefault(name.rpartition("::")[2], []).append(text)

    def test_doxygen_warns_of_nothing(self):
        self.assertEqual((self.doxygen.returncode, self.doxygen.stdout, self.doxygen.stderr), (0, "", ""))

    def test_everything_declared_has_text(self):
        names = set()
        for header in (ROOT / "include").rglob("*.h"):
            for pattern in DECLARED:
                found = re.findall(pattern, header.read_text(), re.MULTILINE)
                names.update(found)
        self.assertGreater(len(names), 40)
        self.assertLessEqual({"SharedProjectionAttention", "is_causal", "causal_mask", "kFused", "fc_out"}, names)
        for name in sorted(names):
            texts = self.documented.get(name)
            self.assertTrue(texts, f"{name}: expected on a page, got none")
            self.assertTrue(all(texts), f"{name}: expected text wherever it stands, got none somewhere")

    def test_the_readme_comes_first(self):
        page = (OUT / "html" / "index.html").read_text()
        self.assertIn("load_state_dict", page)
        for picture in re.findall(r'<img src="([^"]+)"', page):
            self.assertTrue((OUT / "html" / picture).exists(), picture)

    def test_masks_and_shape_letters_are_explained(self):
        [text] = [text for text in self.documented["self_attention"] if text]
        self.assertIn("A mask says what to keep", text)
        self.assertIn("(N, 1, 1, K)", text)


if __name__ == "__main__":
    unittest.main()
