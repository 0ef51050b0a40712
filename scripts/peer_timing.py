"""Times of callables that take turns, as paired ratios: robust where the machine is busy."""

import os
import statistics
import time

# Shorter ones are repeated: long for the clock, short for what else the machine runs.
SAMPLE_SECONDS = 1e-3
MOST_CALLS = 1000
LEAST_ROUNDS = 5
MOST_ROUNDS = 400
# A call longer than this needs no other before it.
LONG_CALL_SECONDS = 5e-3
# Of a sample with several threads: the share of its time that they may wait for a processor.
QUIET = 0.03
# For a quiet one.
TRY_SECONDS = 0.4
TASKS = "/proc/self/task"


def waited():
    """Seconds that this process's threads were ready to run and had no processor, so far; 0 where
    the system does not tell."""
    total = 0
    try:
        for task in os.listdir(TASKS):
            with open(f"{TASKS}/{task}/schedstat") as file:
                total += int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    return total / 1e9


def settle():
    """Waits until the threads of the runtime that ran last have stopped spinning for more work,
    which would take a processor from the one that runs next."""
    for _ in range(60):
        before = time.process_time()
        time.sleep(1e-3)
        if time.process_time() - before < 3e-4:
            return


class Timer:
    """Samples one callable, which works with so many threads."""

    def __init__(self, run, threads):
        self.run = run
        self.threads = threads
        self.lost = []  # share of each sample's time in which a thread waited for a processor
        once = min(self._time(1)[0] for _ in range(3))
        self.calls = min(max(1, round(SAMPLE_SECONDS / once)), MOST_CALLS)
        self.warms = once < LONG_CALL_SECONDS

    def sample(self):
        """Seconds of one call, as if nothing else ran on the machine.

        One thread: the time that it had a processor or slept. Several wait for each other, so that
        nothing can be subtracted: a sample in which one waited for a processor is taken again, and
        of samples that all have that fault the least faulty counts.
        """
        least = self.sample_once()
        if self.threads > 1:
            end = time.perf_counter() + TRY_SECONDS
            while least[1] > QUIET and time.perf_counter() < end:
                least = min(least, self.sample_once(), key=lambda sample: sample[1])
        self.lost.append(least[1])
        return least[0]

    def sample_once(self):
        """(seconds of one call, share of the time that was lost to others)."""
        if self.threads > 1:
            settle()
        if self.warms:
            self.run()
        return self._time(self.calls)

    def _time(self, calls):
        waited_before = waited()
        ran_before = time.process_time()
        start = time.perf_counter()
        for _ in range(calls):
            self.run()
        seconds = time.perf_counter() - start
        ran = time.process_time() - ran_before
        lost = waited() - waited_before
        share = lost / seconds
        if self.threads == 1:
            # A runtime may hand the work to a thread of its own, and both may have waited at once.
            seconds = max(seconds - lost, min(ran, seconds))
        return seconds / calls, share


def fastest(runs, threads):
    """The name of the fastest of several callables: by the shortest of a few samples each, which is
    the least disturbed one."""
    if len(runs) == 1:
        return next(iter(runs))
    timers = {name: Timer(run, threads) for name, run in runs.items()}
    shortest = dict.fromkeys(runs, float("inf"))
    for _ in range(LEAST_ROUNDS):
        for name, timer in timers.items():
            shortest[name] = min(shortest[name], timer.sample_once()[0])
    return min(shortest, key=shortest.get)


def paired_ratios(ours, others, seconds):
    """({name: median of (seconds of the other / ours)}, our median seconds).

    Ours runs before and after each other one, which is divided by the mean of the two.
    `others` maps names to functions that return seconds.
    """
    ratios = {name: [] for name in others}
    times = []
    end = time.perf_counter() + seconds
    for round_number in range(MOST_ROUNDS):
        if round_number >= LEAST_ROUNDS and time.perf_counter() >= end:
            break
        before = ours.sample()
        times.append(before)
        for name, sample in others.items():
            other = sample()
            after = ours.sample()
            ratios[name].append(2 * other / (before + after))
            before = after
            times.append(after)
    medians = {name: statistics.median(values) for name, values in ratios.items()}
    return medians, statistics.median(times)
