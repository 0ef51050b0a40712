"""Archives from C++ over the whole reference: torchscript_whole.py TORCHSCRIPT_PROBE [FILTER]

Each case's weights are exported in every form that can take the case's call, loaded here and run.
Where the Python class has a result, outputs and gradients are equal to it to the bit: those of the
project's classes, and of the public ones where their files are at hand (SELF_ATTENTION_DOCUMENTS).
float16 with a mask, where they raise, is near the float64 result; what the module refuses is refused.
"""

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

PROBE = sys.argv[1]
FILTER = sys.argv[2] if len(sys.argv) > 2 else ""
ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = Path(os.environ.get("SELF_ATTENTION_DOCUMENTS", ROOT.parent / "shared" / "documents"))
# float16 of src/tools/parity/tolerance.cpp.
FLOAT16 = {"output": 1e-2, "gradient": 1.5e-2}
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

    def departs(self, case, form, call, expected, cotangent):
        found = results(call.run(), call.leaves(), cotangent)
        for kind, allowed in FLOAT16.items():
            pairs = [(found[role], expected[role]) for role in found if role.startswith(kind)]
            scale = max([1.0, *(e.abs().max().item() for _, e in pairs if e.numel())])
            near = all(torch.allclose(a.double(), e, rtol=0, atol=allowed * scale, equal_nan=True)
                       for a, e in pairs)
            self.expect("departs", near and bool(pairs), f"{case.name} {form}: {kind}")

    def refused(self, case, form, call):
        try:
            call.run()
        except Exception as error:
            text = str(error)
        else:
            self.expect("refuse", False, f"{case.name} {form}: a result came")
            return
        words = () if case.kind in UNNAMED or case.kind == "lone_argument" else case.words
        if form[1] == "single":
            words = tuple("x:" if word == "values:" else word for word in words)
        missing = [word for word in words if word not in text]
        self.expect("refuse", not missing, f"{case.name} {form}: {missing} not in {text[-300:]}")


def check_case(checks, case, numbers, generator, archives, sources):
    if case.refused:
        for form, archive in archives:
            checks.refused(case, form, Call(case, numbers, archive))
        return
    ours = sources[0]
    departs = ours.departure(case) is not None
    taken = numbers.in_float64() if departs else numbers
    output, leaves = forward(ours, case, taken)
    cotangent = draw_cotangent(output, case, generator)
    expected = results(output, leaves, cotangent.to(output.dtype))
    constant = results(*forward(with_constants(ours), case, taken), cotangent.to(output.dtype))
    for form, archive in archives:
        call = Call(case, numbers, archive)
        owed = constant if form[2] else expected
        (checks.departs if departs else checks.equal)(case, form, call, owed, cotangent)
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
            cases = [c for c in reference_cases.grid(name) if FILTER in c.name and c.inputs]
            sources = list(sources_of(name))
            jobs, prepared = [], []
            for index, case in enumerate(cases):
                generator = generator_for(0, case.name)
                numbers = draw(case, generator)
                weights = write_weights(numbers.parameters, Path(folder) / f"{name}{index}.weights")
                archives = []
                for number, (mask, inputs, freeze) in enumerate(forms_of(case)):
                    archive = Path(folder) / f"{name}{index}-{number}.pt"
                    jobs.append(job(name, weights, archive, case.embed, case.heads, mask, inputs, freeze))
                    archives.append(((mask, inputs, freeze), str(archive)))
                prepared.append((case, numbers, generator, archives))
            answers = export_all(PROBE, jobs)
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
