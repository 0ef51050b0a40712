"""What a long sequence takes beside inputs, weights and output, and what sequences of many lengths
leave behind: memory_test.py LIBRARY
"""

import subprocess
import sys
import unittest

LIBRARY = sys.argv.pop(1)
LENGTH, EMBED, HEADS = 16384, 512, 8

SETUP = """
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
"""
ONE_CALL = """
x = torch.randn(1, length, embed)
before = resident("VmRSS")
with open("/proc/self/clear_refs", "w") as clear:
    clear.write("5")
output = call(x)
print(resident("VmHWM") - before - output.nbytes)
"""
MANY_LENGTHS = """
x = torch.randn(1, length, embed)
call(x)
before = resident("VmRSS")
for shorter in range(300, length, 4):
    call(x[:, :shorter])
print(resident("VmRSS") - before)
"""


def mebibytes(program, name, masked, length):
    command = [sys.executable, "-c", SETUP + program, LIBRARY, name, "mask" if masked else "causal"]
    command += [str(size) for size in (length, EMBED, HEADS)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(run.stdout) / 2**20


def taken(name, masked):
    found = mebibytes(ONE_CALL, name, masked, LENGTH)
    print(f"{name}, {'mask' if masked else 'causal'}: {found:.0f} MiB")
    return found


class Memory(unittest.TestCase):
    def test_shared_heads(self):
        self.assertLess(taken("shared_projection_attention", masked=True), 96)
        self.assertLess(taken("inferred_length_attention", masked=False), 96)

    def test_full_projections(self):
        self.assertLess(taken("full_projection_attention", masked=False), 160)

    def test_many_lengths_leave_little_behind(self):
        left = mebibytes(MANY_LENGTHS, "full_projection_attention", masked=False, length=900)
        print(f"150 lengths: {left:.0f} MiB")
        self.assertLess(left, 96)


if __name__ == "__main__":
    unittest.main()
