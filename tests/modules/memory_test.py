"""What a long sequence takes beside inputs, weights and output: memory_test.py LIBRARY"""

import subprocess
import sys
import unittest

LIBRARY = sys.argv.pop(1)
LENGTH, EMBED, HEADS = 16384, 512, 8

PROGRAM = """
import math, sys, torch
torch.ops.load_library(sys.argv[1])
name, masked = sys.argv[2], sys.argv[3] == "mask"
length, embed, heads = map(int, sys.argv[4:])
torch.set_num_threads(2)
op = getattr(torch.ops.self_attention, name)
d = embed // heads
shapes = [(embed, embed), (embed,)] * 4 if name.startswith("full") else [(d, d)] * 3 + [(embed, embed), (embed,)]
weights = [torch.randn(shape) / math.sqrt(shape[-1]) for shape in shapes]

def resident(key):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(key))

def call(x):
    mask = torch.arange(x.shape[1]).view(1, 1, 1, -1) < x.shape[1] * 3 // 4 if masked else None
    with torch.no_grad():
        return op(x, x, x, mask, *weights, heads, not masked)

call(torch.randn(1, 64, embed))
x = torch.randn(1, length, embed)
before = resident("VmRSS")
with open("/proc/self/clear_refs", "w") as clear:
    clear.write("5")
output = call(x)
print(resident("VmHWM") - before - output.nbytes)
"""


def taken(name, masked):
    command = [sys.executable, "-c", PROGRAM, LIBRARY, name, "mask" if masked else "causal"]
    command += [str(size) for size in (LENGTH, EMBED, HEADS)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    mebibytes = int(run.stdout) / 2**20
    print(f"{name}, {'mask' if masked else 'causal'}: {mebibytes:.0f} MiB")
    return mebibytes


class Memory(unittest.TestCase):
    def test_shared_heads(self):
        self.assertLess(taken("shared_projection_attention", masked=True), 96)
        self.assertLess(taken("inferred_length_attention", masked=False), 96)

    def test_full_projections(self):
        self.assertLess(taken("full_projection_attention", masked=False), 160)


if __name__ == "__main__":
    unittest.main()
