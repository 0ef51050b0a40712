"""README.md and CONTRIBUTING.md: each command is run by a test, or its section says "by hand"; files,
tests and packages that they name are there.

documents_test.py BUILD_DIR           runs the cheap commands as they stand, and checks the table of all
documents_test.py BUILD_DIR --slow    runs ./scripts/parity, which uses the tree's own build/
"""

import fnmatch
import json
import os
import re
import subprocess
import sys
import unittest
from collections import namedtuple
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "support")]

from folder_test import FolderTest

BUILD = Path(sys.argv.pop(1)).resolve()
SLOW = "--slow" in sys.argv
if SLOW:
    sys.argv.remove("--slow")

PROGRAMS = ("apt-get", "ASAN_OPTIONS=", "build/", "clang", "cmake", "ctest", "doxygen", "ninja", "pip", "python",
            "scripts/", "self-attention", "torchrun", ".venv/bin/", "./")
PLACES = {"FILE": "from_python.pt", "DIR": str(ROOT / "tests/parity/snapshot/shared_projection"), "NAME": "causal"}

# The entry of ctest that runs the same command, and words of its file that show it.
Tested = namedtuple("Tested", "test file words")
RUN, PARITY, CALLER, HAND = "run here", "run with --slow", "runs the tests", "by hand"

SERVERS = "tests/serving/servers_test.py"
BUILD_TRAINING = "tests/examples/build_train_language_model"
PEERS = ".venv/bin/python scripts/compare_peers.py "
SPEED = "python tests/bench/torchscript_speed.py build/bin/torchscript_probe "
TABLE = {
    "./scripts/parity": PARITY,
    "./scripts/parity --variant shared_projection --source my_model.py:MyAttention": PARITY,
    "./scripts/parity --filter NAME": PARITY,
    "./scripts/parity --torch 2.14.1": HAND,
    "./scripts/setup": CALLER,
    "./scripts/test": CALLER,
    "./scripts/test --all": CALLER,
    "self-attention export --variant shared_projection --weights from_python.pt --out model.pt": RUN,
    "self-attention export --variant shared_projection --weights from_python.pt --mask none --triton models/": RUN,
    "self-attention inspect FILE": RUN,
    "self-attention parity DIR": RUN,
    "self-attention parity --help": RUN,
    "self-attention bench --filter … --json …":
        Tested("bench_tests", "tests/bench/command_test.cpp", "--filter L9"),
    'python scripts/plot_attention.py maps.safetensors --item 0 --labels "the cat sat on the mat"':
        Tested("plot_attention_tests", "tests/modules/plot_attention_test.py", '"--item"'),
    "./scripts/serve_triton --variant shared_projection --weights from_python.pt":
        Tested("serving_triton", SERVERS, "What scripts/serve_triton"),
    "./scripts/serve_mlserver --variant shared_projection --weights from_python.pt --mask required":
        Tested("serving_mlserver", SERVERS, "What scripts/serve_triton and serve_mlserver"),
    ".venv/bin/python scripts/compile_module.py --library build/lib/libself_attention.so --variant shared_projection "
    "--weights from_python.pt --out model.pt2":
        Tested("serving_host", "tests/serving/host_test.py", '"compile_module.py"'),
    ".venv/bin/python -m pip install onnx onnxruntime openvino matplotlib": HAND,
    PEERS + "--csv peers.csv --png peers.png": HAND,
    PEERS + "--modules --csv modules.csv --png modules.png": HAND,
    "apt-get install -y libgloo-dev": Tested("train_language_model_build", "scripts/setup", "libgloo-dev"),
    "cmake --install build --prefix build/prefix":
        Tested("train_language_model_build", BUILD_TRAINING, 'cmake --install "$build" --prefix "$prefix"'),
    'cmake -S tests/examples/train_language_model -B build/train -G Ninja -DCMAKE_PREFIX_PATH="$PWD/build/prefix" '
    "-DTorch_DIR=\"$(sed -n 's/^Torch_DIR:.*=//p' build/CMakeCache.txt)\"":
        Tested("train_language_model_build", BUILD_TRAINING, 'cmake -S "$here/train_language_model" -B "$program"'),
    "cmake --build build/train && build/train/train_language_model --out language_model":
        Tested("train_language_model_curve", "tests/examples/training_program.py", '"--out"'),
    "torchrun --no-python --nproc-per-node 2 --max-restarts 3 build/train/train_language_model --out language_model "
    "--resume":
        Tested("train_language_model_ranks", "tests/examples/train_language_model_ranks.py", '"--no-python"'),
    "scripts/plot_loss.py language_model/loss.csv":
        Tested("plot_loss_tests", "tests/examples/plot_loss_test.py", '"loss.csv"'),
    "python scripts/plot_loss.py GPL-3=language_model/loss.csv --smooth 20 --png tests/examples/loss.png": HAND,
    "doxygen cmake/Doxyfile": Tested("api_pages", "tests/style/api_pages_test.py", '"cmake" / "Doxyfile"'),
    "cmake --preset asan-ubsan -DTorch_DIR=…/torch/share/cmake/Torch && cmake --build --preset asan-ubsan && "
    "ASAN_OPTIONS=detect_leaks=0 ctest --preset asan-ubsan -LE slow": HAND,
    "python tests/op/random_calls_test.py build/lib/libself_attention.so 1000000": HAND,
    "python tests/modules/accuracy_test.py build/lib/libself_attention.so 50 20": HAND,
    "./scripts/device_check pack DIR": HAND,
    "./scripts/device_check run DIR": HAND,
    "python scripts/export_reference.py --snapshot --variant VARIANT --source document_00N.py --out "
    "tests/parity/snapshot/VARIANT": HAND,
    SPEED + "DOCUMENTS [THREADS]": HAND,
    "cmake --build build --target module_calls": HAND,
    SPEED + "--fused build/lib/libmodule_calls.so [THREADS]": HAND,
    "python tests/bench/serving.py --document DOCUMENT": HAND,
    "build/examples/serve/serve load MODEL.pt --direct": HAND,
    "pip freeze": HAND,
    "pip install mlserver": HAND,
    "clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined "
    "-DFMT_HEADER_ONLY -DSELF_ATTENTION_VERSION='\"\"' -Iinclude -Isrc -Itests "
    "$(ls src/io/*.cpp | grep -vE 'checkpoint|torchscript.cpp') tests/fuzz/fuzz_checkpoint.cpp -ldeflate "
    "-o fuzz_checkpoint && mkdir found && ./fuzz_checkpoint -runs=5000000 found tests/fuzz/corpus": HAND,
}


# What a folder of src/ includes of src/, as CONTRIBUTING.md says: beginnings of paths.
INCLUDES = {
    "src/backends/cpu/kernel": ("backends/cpu/kernel/",),
    "src/backends": ("backends/", "ops/attention_arguments.h", "ops/input_checks.h"),
    "src/ops": ("ops/", "backends/", "io/"),
    "src/modules": ("modules/", "ops/", "backends/"),
    "src/io": ("io/", "ops/input_checks.h"),
    "src/tools": ("tools/", "io/"),
    "tests/modules": ("modules/", "io/", "tools/", "support/"),
    "tests/io": ("io/", "tools/", "support/"),
}


def inline_code(text):
    return re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def commands_of(text):
    """Lines of ```sh blocks, and inline code that begins with a program and has an argument."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            yield re.sub(r"\s{2,}# .*", "", line)
    for code in inline_code(text):
        words = code.split()
        least = {"self-attention": 3, "./scripts/setup": 1, "./scripts/test": 1, "./scripts/parity": 1}
        if code.startswith(PROGRAMS) and len(words) >= least.get(words[0], 2):
            yield " ".join(words)


def documented():
    """Command -> the sections that it stands in, from their headings on."""
    found = {}
    for name in ("README.md", "CONTRIBUTING.md"):
        for section in re.split(r"^(?=## )", (ROOT / name).read_text(), flags=re.MULTILINE):
            for command in commands_of(section):
                found.setdefault(command, []).append(section)
    return found


class CommandsTest(FolderTest):
    def run_command(self, command):
        for place, value in PLACES.items():
            command = re.sub(rf"\b{place}\b", value, command)
        command = re.sub(r"^\./scripts/", f"{ROOT}/scripts/", command)
        environment = {**os.environ, "PATH": f"{BUILD / 'bin'}:{os.environ['PATH']}"}
        run = subprocess.run(["bash", "-euc", command], cwd=self.folder, env=environment, capture_output=True,
                             text=True)
        self.assertEqual(run.returncode, 0, f"{command}\n{run.stdout}\n{run.stderr}")
        return run.stdout


class Documents(CommandsTest):
    def test_the_table_is_that_of_the_documents(self):
        found = documented()
        self.assertEqual(sorted(found.keys() - TABLE.keys()), [], "in the documents alone")
        self.assertEqual(sorted(TABLE.keys() - found.keys()), [], "in the table alone")
        for command, how in TABLE.items():
            if how is HAND:
                for section in found[command]:
                    self.assertIn("by hand", section.lower(), f"{command}: expected its section to say so")

    def test_the_tests_are_there_and_have_the_words(self):
        shown = subprocess.run(["ctest", "--test-dir", BUILD, "--show-only=json-v1"], capture_output=True, check=True)
        tests = {test["name"] for test in json.loads(shown.stdout)["tests"]}
        levels = (ROOT / "CONTRIBUTING.md").read_text().partition("| level |")[2].partition("\n\n")[0]
        named = [name for row in levels.splitlines()[2:]
                 for name in re.findall(r"`(\w+\*?)`", row.rpartition(" | ")[2])]
        self.assertGreater(len(named), 12)
        for name in named:
            self.assertTrue(fnmatch.filter(tests, name), name)
        for command, how in TABLE.items():
            if isinstance(how, Tested):
                self.assertIn(how.test, tests, command)
                self.assertIn(how.words, (ROOT / how.file).read_text(), f"{command}: {how.file}")

    def test_files_that_are_named_are_there(self):
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
        tracked = listed.stdout.split()
        theirs = ("document_000.py", "document_002.py")
        for name in ("README.md", "CONTRIBUTING.md"):
            for code in inline_code((ROOT / name).read_text()):
                if re.fullmatch(r"(src|tests|scripts|cmake|include)/[\w./*-]+", code):
                    self.assertTrue(any(ROOT.glob(code)), f"{name}: {code}")
                elif re.fullmatch(r"[\w/*-]+\.(cpp|h|py)", code) and code not in theirs:
                    self.assertTrue(fnmatch.filter(tracked, f"*/{code}"), f"{name}: {code}")

    def test_includes_point_one_way(self):
        for folder, allowed in INCLUDES.items():
            files = [file for file in (ROOT / folder).rglob("*") if file.suffix in (".cpp", ".h")]
            self.assertGreater(len(files), 4, folder)
            for file in files:
                for included in re.findall(r'^#include "(.*)"', file.read_text(), re.MULTILINE):
                    self.assertTrue(included.startswith(allowed), f"{file}: {included}")

    def test_packages_are_those_of_the_setup(self):
        setup = (ROOT / "scripts/setup").read_text()
        installed = [name for words in re.findall(r"packages=\(([^)]*)\)", setup) for name in words.split()]
        table = (ROOT / "CONTRIBUTING.md").read_text().partition("| package |")[2].partition("| Python")[0]
        named = [name for row in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
        self.assertEqual(sorted(named), sorted(installed))

    def test_cheap_ones_run_as_they_stand(self):
        import torch
        from reference_modules import SharedProjectionAttention

        torch.save(SharedProjectionAttention(16, 2).state_dict(), self.folder / "from_python.pt")
        for command in (command for command, how in TABLE.items() if how is RUN):
            with self.subTest(command):
                self.assertNotEqual(self.run_command(command), "")
        self.assertTrue((self.folder / "model.pt").exists())
        self.assertTrue((self.folder / "models" / "shared_projection" / "1" / "model.pt").exists())


class Parity(CommandsTest):
    def test_it_runs_as_it_stands(self):
        text = (ROOT / "tests/parity/user_module.py").read_text()
        (self.folder / "my_model.py").write_text(f"{text}\n\nclass MyAttention(CrossAttention):\n    pass\n")
        for command in sorted((command for command, how in TABLE.items() if how is PARITY), key=len, reverse=True):
            with self.subTest(command):
                last = self.run_command(command).splitlines()[-1]
                self.assertRegex(last, r"^\d+ cases passed, 0 failed, 0 skipped$")
        # The last one is the shortest, without options.
        self.assertIn(f"\n{last}\n", (ROOT / "README.md").read_text())


if __name__ == "__main__":
    unittest.main(defaultTest="Parity" if SLOW else "Documents")
