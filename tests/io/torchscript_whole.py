"""Archives from C++ over the whole reference:
torchscript_whole.py TORCHSCRIPT_PROBE [--fused LIBRARY] [FILTER]

Each case's weights are exported in every form that can take the case's call, loaded here and run.
Where the Python class has a result, outputs and gradients are equal to it to the bit: those of the
project's classes, and of the public ones where their files are at hand (SELF_ATTENTION_DOCUMENTS).
float16 with a mask, where they raise, is near the float64 result; what the module refuses is refused.

With --fused the archives call the ops of the library, which round in their own way: outputs and
gradients are near the float64 ones, as `self-attention parity` wants them of Backend::Auto.
"""

import argparse
import os
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from archives import export_all, job, same_bits, write_weights

import reference_cases
from reference_run import draw, draw_cotangent, forward, results
from reference_source import load_source, our_source
from reference_spec import VARIANTS
from reference_tensors import generator_for

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("probe")
parser.add_argument("--fused", metavar="LIBRARY")
parser.add_argument("filter", nargs="?", default="")
OPTIONS = parser.parse_args()
OPS = "fused" if OPTIONS.fused else "portable"
if OPTIONS.fused:
    torch.ops.load_library(OPTIONS.fused)
ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = Path(os.environ.get("SELF_ATTENTION_DOCUMENTS", ROOT.parent / "shared" / "documents"))
# src/tools/parity/tolerance.cpp: of outputs and of gradients.
TOLERANCES = {"float64": (5e-15, 1e-14), "float32": (5e-6, 8e-6), "bfloat16": (1e-1, 1.5e-1),
              "float16": (1e-2, 1.5e-2)}
# Of fused outputs, which are rounded once.
FUSED_OUTPUTS = {"bfloat16": 2**-8 + 4e-6, "float16": 2**-11 + 4e-6}
# Dtypes are LibTorch's to refuse, and its words name no argument.
UNNAMED = ("input_dtype",)


def sources_of(name):
    """The project's class and, where it is at hand, the public one."""
    yield our_source(name)
    document = DOCUMENTS / f"document_{VARIANTS[name].document}.py"
    if document.is_file():
        yield load_source(name, str(document))


def forms_of(case):
    """(mask, inputs, freeze) of every form whose forward takes the case's call."""
    inputs = "single" if set(case.arguments) == {"values"} else "separate"
    plain = "none" if case.mask is None else "required"
    return (plain, inputs, False), ("optional", inputs, False), (plain, inputs, True)


def with_constants(source):
    """The class with parameters that require no gradient, for which LibTorch may multiply in another
    way: what a frozen archive is equal to."""
    return replace(source, cls=lambda *sizes: source.cls(*sizes).requires_grad_(False))


class Call:
    """One case's call of one archive."""

    def __init__(self, case, numbers, archive):
        self.case = case
        self.module = torch.jit.load(archive)
        self.inputs = {name: tensor.detach() for name, tensor in numbers.inputs.items()}
        for tensor in self.inputs.values():
            tensor.requires_grad_(tensor.is_floating_point())
        self.mask = numbers.mask

    def leaves(self):
        """What gradients are asked of."""
        return self.inputs | dict(self.module.named_parameters())

    def run(self):
        tensors = [self.inputs[name] for name in self.case.arguments.values()]
        return self.module(*tensors, *([] if self.mask is None else [self.mask]))


class Owed:
    """What is owed to within rounding: float64 results, and the class's own where it has any."""

    def __init__(self, exact, own=None):
        self.exact = exact
        self.own = own or {}

    def own_error(self, role):
        """The largest finite error of the class."""
        if role not in self.own:
            return 0.0
        difference = (self.own[role].double() - self.exact[role].double()).abs()
        return largest(difference)


def largest(tensor):
    """The largest finite magnitude."""
    finite = tensor[torch.isfinite(tensor)]
    return finite.abs().max().item() if finite.numel() else 0.0


def distance(found, exact, case):
    """The largest difference, infinite where a number meets something else. Numbers that are not
    finite and that the mask hides make NaN in the class; an op may leave them out."""
    found, exact = found.double(), exact.double()
    same = (found == exact) | (torch.isnan(found) & torch.isnan(exact))
    if OPS == "fused" and case.kind.startswith("nonfinite_masked"):
        same |= torch.isnan(exact)
    difference = (found - exact).abs().nan_to_num(float("inf"))
    return difference[~same].max().item() if not same.all() else 0.0


class Checks:
    def __init__(self):
        self.counts = Counter()
        self.failures = []

    def expect(self, kind, right, text):
        self.counts[f"{kind}: {'passed' if right else 'FAILED'}"] += 1
        if not right:
            self.failures.append(f"{kind}: {text}")

    def equal(self, case, form, call, expected, cotangent):
        """Calls 1 to 4: the first compiles, from the second on the optimised code runs."""
        label = f"{case.name} {form}"
        for number in range(1, 5):
            found = results(call.run(), call.leaves(), cotangent)
            wrong = [role for role in found
                     if role not in expected or not same_bits(found[role], expected[role])]
            wrong += [role for role in expected if role not in found]
            self.expect(f"equal, {'frozen' if form[2] else form[0]}", not wrong,
                        f"{label} call {number}: {', '.join(wrong)}")
        with torch.no_grad():
            self.expect("equal without gradients", same_bits(call.run(), expected["output"]), label)

    def near(self, case, form, call, owed, cotangent):
        """Within the table, or twice the class's own error, of the float64 results. The same calls
        as for equality."""
        for number in range(1, 5):
            found = results(call.run(), call.leaves(), cotangent)
            self.expect("the same tensors", set(found) == set(owed.exact), f"{case.name} {form}")
            for kind, table in zip(("output", "gradient"), TOLERANCES[case.dtype]):
                roles = [role for role in found if role.startswith(kind)]
                scale = max(1.0, *(largest(owed.exact[role]) for role in roles))
                errors = {role: distance(found[role], owed.exact[role], case) for role in roles}
                wrong = [f"{role} by {error:.1e}" for role, error in errors.items()
                         if not error <= max(table * scale, 2 * owed.own_error(role))]
                self.expect(f"near, {'frozen' if form[2] else form[0]}", not wrong,
                            f"{case.name} {form} call {number}: {', '.join(wrong)}")
        with torch.no_grad():
            error = distance(call.run(), owed.exact["output"], case)
        scale = max(1.0, largest(owed.exact["output"]))
        if OPS == "fused" and case.dtype in FUSED_OUTPUTS:
            allowed = FUSED_OUTPUTS[case.dtype] * scale
        else:
            allowed = max(TOLERANCES[case.dtype][0] * scale, 2 * owed.own_error("output"))
        self.expect("near without gradients", error <= allowed, f"{case.name} {form}: {error:.1e}")

    def refused(self, case, form, call):
        try:
            call.run()
        except Exception as error:
            text = str(error)
        else:
            self.expect("refuse", False, f"{case.name} {form}: a result came")
            return
        words = () if case.kind in UNNAMED or case.kind == "lone_argument" else case.words
        if OPS == "fused":
            op = f"[{case.variant.name}_attention]"
            words = tuple(op if word == f"[{case.variant.class_name}]" else word for word in words)
        elif form[1] == "single":
            words = tuple("x:" if word == "values:" else word for word in words)
        missing = [word for word in words if word not in text]
        self.expect("refuse", not missing, f"{case.name} {form}: {missing} not in {text[-300:]}")


def results_of(source, case, numbers, cotangent):
    output, leaves = forward(source, case, numbers)
    return results(output, leaves, cotangent.to(output.dtype))


def check_case(checks, case, numbers, generator, archives, sources):
    if case.refused:
        for form, archive in archives:
            checks.refused(case, form, Call(case, numbers, archive))
        return
    ours = sources[0]
    departs = ours.departure(case) is not None
    output, leaves = forward(ours, case, numbers.in_float64() if departs else numbers)
    cotangent = draw_cotangent(output, case, generator)
    expected = results(output, leaves, cotangent.to(output.dtype))
    for form, archive in archives:
        call = Call(case, numbers, archive)
        source = with_constants(ours) if form[2] else ours
        exactly = OPS == "portable" and not departs
        owed = results_of(source, case, numbers if exactly else numbers.in_float64(), cotangent)
        if exactly:
            checks.equal(case, form, call, owed, cotangent)
        else:
            own = None if departs else results_of(source, case, numbers, cotangent)
            checks.near(case, form, call, Owed(owed, own), cotangent)
    for public in sources[1:]:
        if public.departure(case) is not None:
            continue
        found = results(*forward(public, case, numbers), cotangent)
        fits = all(same_bits(found[role], expected[role]) for role in found)
        checks.expect("the public class is the project's", fits, case.name)


def main():
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in VARIANTS:
            # A constructor that refuses has no archive.
            cases = [c for c in reference_cases.grid(name) if OPTIONS.filter in c.name and c.inputs]
            sources = list(sources_of(name))
            jobs, prepared = [], []
            for index, case in enumerate(cases):
                generator = generator_for(0, case.name)
                numbers = draw(case, generator)
                weights = write_weights(numbers.parameters, Path(folder) / f"{name}{index}.weights")
                archives = []
                for number, (mask, inputs, freeze) in enumerate(forms_of(case)):
                    archive = Path(folder) / f"{name}{index}-{number}.pt"
                    jobs.append(job(name, weights, archive, case.embed, case.heads, mask, inputs, freeze,
                                    OPS))
                    archives.append(((mask, inputs, freeze), str(archive)))
                prepared.append((case, numbers, generator, archives))
            answers = export_all(OPTIONS.probe, jobs)
            wrong = [answer for answer in answers if answer != "ok"]
            if wrong or len(answers) != len(jobs):
                sys.exit(f"{name}: {len(answers)} answers to {len(jobs)} exports, such as {wrong[:3]}")
            print(f"{name}: {len(cases)} cases, {len(jobs)} archives", flush=True)
            for arguments in prepared:
                check_case(checks, *arguments, sources)
                for _, archive in arguments[3]:
                    os.unlink(archive)
    for kind, count in sorted(checks.counts.items()):
        print(f"{count:6} {kind}")
    for failure in checks.failures[:20]:
        print(failure)
    print(f"{len(checks.failures)} failed")
    return 1 if checks.failures or not checks.counts else 0


if __name__ == "__main__":
    sys.exit(main())
