"""What the processor could do at best, measured beside the runs that are compared with it.

Multiply-adds: a loop of independent float32 ones in registers, as wide as the processor has them.
Reading: a loop that adds up an array as large as what the case reads, so from the same cache.
Both are C, compiled when needed for this processor; without a compiler a product of matrices and
torch.sum stand in, which reach less. With several threads, each runs the loop; rates of arithmetic
add up, and what is read counts from the first one's start to the last one's end, since threads share
the memory.
Products: of matrices that are large enough for the full rate, by torch.mm or by oneDNN's linear
layer, whichever is the faster.
"""

import ctypes
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from peer_timing import Timer

SOURCE = r"""
#include <sched.h>
#include <stddef.h>
#include <time.h>

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
typedef float vec __attribute__((vector_size(VECTOR_BYTES)));
#define LANES (VECTOR_BYTES / sizeof(float))
/* As many as hide the latency of a multiply-add, and no more than there are registers. */
#define FOR_ALL(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define COUNT 12

static volatile float sink;

static double now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* Unlike each other, or one would do for all. */
#define START(i) vec a##i = {i};
#define MULTIPLY_ADD(i) a##i = a##i * x + y;
#define ADD_LOADED(i) a##i += from[i * part + at];
#define SINK(i) sink = a##i[0];

/* Floating-point operations a second of the thread's own time: what else the machine runs does not
   count. */
double multiply_add_rate(size_t rounds) {
  vec x = {0}, y = {0};
  x += 0.5f + sink * 0;
  y += 0.5f + sink * 0;
  FOR_ALL(START)
  const double start = now(CLOCK_THREAD_CPUTIME_ID);
  for (size_t i = 0; i < rounds; ++i) {
    FOR_ALL(MULTIPLY_ADD)
    __asm__ volatile("");
  }
  const double seconds = now(CLOCK_THREAD_CPUTIME_ID) - start;
  FOR_ALL(SINK)
  return 2.0 * COUNT * LANES * rounds / seconds;
}

/* Start and end, in seconds, of a second pass, which begins when every thread has made its first:
   `others` counts those that have not. In several streams at once, which reads faster than one. */
void read_all(const void* data, size_t bytes, int* others, double* times) {
  const vec* from = data;
  const size_t part = bytes / (COUNT * VECTOR_BYTES);
  FOR_ALL(START)
  for (int pass = 0; pass < 2; ++pass) {
    if (pass == 1) {
      __atomic_sub_fetch(others, 1, __ATOMIC_SEQ_CST);
      while (__atomic_load_n(others, __ATOMIC_SEQ_CST) > 0) sched_yield();
    }
    times[0] = now(CLOCK_MONOTONIC);
    for (size_t at = 0; at < part; ++at) {
      FOR_ALL(ADD_LOADED)
    }
    times[1] = now(CLOCK_MONOTONIC);
  }
  FOR_ALL(SINK)
}
"""
# About a millisecond.
ROUNDS = 100_000
PRODUCT_SIZE = 512
READS = 3  # by several threads, which may meet on one core: the fastest counts
ALIGNMENT = 64


def compile_loops():
    """The two C functions, or None where no compiler makes them."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "loops.c"), Path(folder, "loops.so")
        source.write_text(SOURCE)
        command = [compiler, "-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC"]
        done = subprocess.run([*command, "-o", library, source], capture_output=True)
        if done.returncode:
            return None
        loops = ctypes.CDLL(str(library))
    loops.multiply_add_rate.restype = ctypes.c_double
    loops.multiply_add_rate.argtypes = [ctypes.c_size_t]
    loops.read_all.restype = None
    counter, times = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_double)
    loops.read_all.argtypes = [ctypes.c_void_p, ctypes.c_size_t, counter, times]
    return loops


class Roofline:
    """Rates of so many threads."""

    def __init__(self, threads):
        self.threads = threads
        self.loops = compile_loops()
        self.workers = ThreadPoolExecutor(threads)
        self.array = torch.zeros(0)
        self.products = None

    @property
    def description(self):
        if self.loops is None:
            return "by torch.mm and torch.sum (no C compiler)"
        return "by loops in C"

    def multiply_add_rate(self):
        """Floating-point operations a second."""
        if self.loops is None:
            return self.product_rate()
        return sum(self.workers.map(self.loops.multiply_add_rate, [ROUNDS] * self.threads))

    def product_rate(self):
        """Floating-point operations a second, of a product of matrices."""
        if self.products is None:
            with torch.inference_mode(False):  # for cases with gradients and without
                left, right, product = torch.rand(3, PRODUCT_SIZE, PRODUCT_SIZE)
            products = [lambda: torch.mm(left, right, out=product)]
            if torch.backends.mkldnn.is_available():
                linear = torch.ops.mkldnn._linear_pointwise
                products.append(lambda: linear(left, right, None, "none", [], ""))
            self.products = [Timer(product, self.threads) for product in products]
        return 2 * PRODUCT_SIZE**3 / min(timer.sample() for timer in self.products)

    def read_rate(self, size):
        """Bytes a second, of an array of `size` bytes."""
        if self.array.nbytes != size:
            self.array = torch.ones(size // 4)
        if self.loops is None:
            return size / Timer(self.array.sum, self.threads).sample()
        reads = READS if self.threads > 1 else 1
        return size / min(self.read_seconds() for _ in range(reads))

    def read_seconds(self):
        part = self.array.nbytes // self.threads // ALIGNMENT * ALIGNMENT
        others = ctypes.c_int(self.threads)
        times = [(ctypes.c_double * 2)() for _ in range(self.threads)]
        parts = [self.array.data_ptr() + i * part for i in range(self.threads)]
        calls = [
            self.workers.submit(self.loops.read_all, data, part, others, pair)
            for data, pair in zip(parts, times)
        ]
        for call in calls:
            call.result()
        return max(end for _, end in times) - min(start for start, _ in times)
