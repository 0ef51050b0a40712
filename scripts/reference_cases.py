"""The case grid: every forward whose results the library owes, and (reference_refusals.py) every
call that it refuses. A case is named by variant, dtype, kind of mask and shape."""

import math
from collections import Counter
from dataclasses import replace

from reference_refusals import refusals
from reference_spec import DTYPES, LAYOUTS, VARIANTS, Case, Input, Mask

NOT_HALF = DTYPES[:3]  # the dtypes in which the originals run with a mask
SMALL = (2, 3, 5, 6, 2)  # N, Q, K, E, H

MASK_DTYPES = ("bool", "uint8", "int32", "int64", "float16", "float32", "float64")
# Float masks, each with a number that a narrower dtype would turn into zero.
TINY = {"float16": 1e-4, "float32": 2e-38, "float64": 1e-300}
MASK_KINDS = (
    "none", "padding", "causal", "query_key", "per_head", "head_padding", "full", "key_vector",
    "row", "masked_rows", "all_masked", "scalar",
)


def mask_of(kind, batch, heads, queries, keys, **changes):
    """The mask of a kind for scores (N, H, Q, K)."""
    masks = {
        "none": None,
        "padding": Mask("padding", (batch, 1, 1, keys)),
        "causal": Mask("causal", (queries, keys), dtype="float32"),
        "query_key": Mask("random", (queries, keys)),
        "per_head": Mask("random", (1, heads, queries, keys)),
        "head_padding": Mask("random", (batch, heads, 1, keys)),
        "full": Mask("random", (batch, heads, queries, keys)),
        "key_vector": Mask("random", (keys,)),
        "row": Mask("rows", (batch, 1, queries, 1)),
        "masked_rows": Mask("rows", (queries, keys)),
        "all_masked": Mask("nothing", (batch, 1, 1, keys)),
        "scalar": Mask("everything", ()),
    }
    return replace(masks[kind], **changes) if changes else masks[kind]


def make_case(variant, dtype, kind, sizes, *, sharing="separate", layouts=("contiguous",) * 3,
              suffix="", **fields):
    """A case of sizes (N, Q, K, E, H) whose mask is the kind's unless `mask` gives another.

    sharing: separate inputs v, k, q; memory m for values and keys; the same x for all three; alone,
    001's forward(x). layouts: of values, keys and query.
    """
    batch, queries, keys, embed, heads = sizes
    names = {"separate": "vkq", "memory": "mmq", "same": "xxx", "alone": "x"}[sharing]
    arguments = dict(zip(variant.arguments, names))
    inputs = {
        name: Input((batch, length, embed), layout)
        for name, length, layout in zip(names, (keys, keys, queries), layouts)
    }
    if "mask" not in fields:
        fields["mask"] = mask_of(kind, batch, heads, queries, keys)
    shape = f"n{batch}-q{queries}-k{keys}-e{embed}-h{heads}"
    label = "-".join(filter(None, (shape, sharing if sharing != "separate" else "", suffix)))
    return Case(variant, dtype, kind, label, embed, heads, inputs, arguments, **fields)


def mask_kinds(variant):
    """Every kind of mask in every dtype, and most of them at three heads with d = 8."""
    for dtype in DTYPES:
        for kind in MASK_KINDS:
            yield make_case(variant, dtype, kind, SMALL)
    for dtype in ("float32", "bfloat16"):
        for kind in ("padding", "causal", "per_head", "full", "row"):
            yield make_case(variant, dtype, kind, (1, 9, 4, 24, 3))


def head_sizes(variant):
    """d of 1, 3, 8, 16 and 64; one head, and as many as the embedding has."""
    for embed, heads in ((1, 1), (4, 4), (6, 2), (8, 1), (32, 4), (16, 16), (64, 1), (128, 2)):
        for dtype in DTYPES:
            kind = "padding" if dtype in ("float64", "bfloat16") else "none"
            yield make_case(variant, dtype, kind, (2, 4, 6, embed, heads))


def lengths(variant):
    """Lengths of 0, 1, odd, and past 128; batches of 0 where they are allowed."""
    for batch, queries, keys, kind in (
        (2, 0, 5, "padding"), (2, 5, 0, "none"), (2, 5, 0, "padding"), (2, 0, 0, "none"),
        (3, 1, 1, "none"), (1, 1, 130, "padding"), (1, 130, 1, "none"), (1, 33, 257, "padding"),
        (1, 130, 130, "causal"), (1, 257, 31, "none"),
    ):
        for dtype in DTYPES if kind == "none" else NOT_HALF:
            yield make_case(variant, dtype, kind, (batch, queries, keys, 16, 2))
    if variant.document != "002":
        for dtype, kind in (("float64", "padding"), ("float32", "none"), ("bfloat16", "none")):
            yield make_case(variant, dtype, kind, (0, 3, 4, 8, 2))


def input_layouts(variant):
    """Inputs that are transposes, slices or stride-0 expansions, alone and mixed."""
    arranged = {layout: (layout,) * 3 for layout in LAYOUTS[1:]}
    arranged["mixed"] = ("sliced", "transposed_embed", "transposed_batch")
    for suffix, layouts in arranged.items():
        for dtype in DTYPES:
            kind = "causal" if dtype == "float64" else "none"
            yield make_case(variant, dtype, kind, SMALL, layouts=layouts, suffix=suffix)


def mask_layouts(variant):
    """Masks that are views."""
    batch, queries, keys, _, heads = SMALL
    for layout in ("transposed", "sliced", "expanded"):
        for dtype in NOT_HALF:
            mask = mask_of("full", batch, heads, queries, keys, layout=layout)
            yield make_case(variant, dtype, "full", SMALL, mask=mask, suffix=f"mask_{layout}")


def mask_values(variant):
    """What counts as zero: seven dtypes of mask, and the odd numbers a float one can hold."""
    batch, queries, keys, _, heads = SMALL
    for mask_dtype in MASK_DTYPES:
        for dtype in ("float64", "bfloat16"):
            mask = mask_of(
                "full", batch, heads, queries, keys, dtype=mask_dtype, keeps=(1, 2, 200)
            )
            yield make_case(variant, dtype, "mask_dtype", SMALL, mask=mask, suffix=mask_dtype)
    for mask_dtype, tiny in TINY.items():
        for dtype in ("float64", "float32"):
            mask = mask_of(
                "full", batch, heads, queries, keys,
                dtype=mask_dtype, keeps=(math.nan, 0.3, -math.inf, tiny), drops=(0.0, -0.0),
            )
            yield make_case(variant, dtype, "odd_numbers", SMALL, mask=mask, suffix=mask_dtype)
    for dtype in NOT_HALF:
        # What other libraries read as "keep, drop" by adding it, this one reads the other way.
        mask = mask_of(
            "padding", batch, heads, queries, keys,
            dtype="float32", keeps=(-math.inf,), drops=(0.0,),
        )
        yield make_case(variant, dtype, "additive", SMALL, mask=mask)


def causal_alignments(variant):
    """tril where Q is not K: from the top-left, from the bottom-right, and leaving blind rows."""
    for queries, keys, diagonal in ((2, 5, 0), (2, 5, 3), (5, 2, 0), (5, 2, -3)):
        for dtype in NOT_HALF:
            mask = mask_of("causal", 1, 2, queries, keys, diagonal=diagonal)
            yield make_case(
                variant, dtype, "causal", (1, queries, keys, 4, 2),
                mask=mask, suffix=f"diagonal{diagonal:+d}",
            )


def shared_inputs(variant):
    """One tensor in two or three places is one autograd leaf: its gradients add up."""
    for dtype in DTYPES:
        for kind in ("none", "padding"):
            yield make_case(variant, dtype, kind, (2, 4, 6, 8, 2), sharing="memory")
            yield make_case(variant, dtype, kind, (2, 6, 6, 8, 2), sharing="same")


def planted(case, name, number):
    """The case with a number in feature 0 of row 0 of batch 0 of an input."""
    return replace(case, inputs=case.inputs | {name: replace(case.inputs[name], first=number)})


def odd_inputs(variant):
    """Numbers that are not finite, and scores below the fill."""
    batch, queries, keys, _, heads = SMALL
    hidden = Mask("first", (keys,))
    blind = mask_of("masked_rows", batch, heads, queries, keys)
    for dtype in NOT_HALF:
        plain = make_case(variant, dtype, "nan_query", SMALL, mask=None)
        yield planted(plain, "q", math.nan)
        masked = make_case(variant, dtype, "nan_query", SMALL, mask=blind, suffix="masked_rows")
        yield planted(masked, "q", math.nan)
        for label, number in (("nan", math.nan), ("inf", math.inf)):
            key = make_case(
                variant, dtype, "nonfinite_masked_key", SMALL, mask=hidden, suffix=label
            )
            yield planted(key, "k", number)
        value = make_case(variant, dtype, "nonfinite_masked_value", SMALL, mask=hidden)
        yield planted(value, "v", math.nan)
        below = make_case(
            variant, dtype, "below_fill", (1, 3, 2, 4, 2),
            mask=Mask("last", (2,)), identity_weights=True,
        )
        # Key 0, which the mask keeps, scores -1e30: less than the fill of key 1.
        yield planted(planted(below, "k", -1e15), "q", 1e15)


def self_attention(variant):
    """001 as forward(x): first what the original can run, one head and no mask, then the rest."""
    one_head = [(2, length, 16) for length in (0, 1, 3, 33)]
    one_head += [(1, 130, 16), (1, 257, 8), (0, 3, 8)]
    one_head += [(2, 5, embed) for embed in (1, 3, 8, 64, 128)]
    for batch, length, embed in one_head:
        for dtype in DTYPES:
            sizes = (batch, length, length, embed, 1)
            yield make_case(variant, dtype, "none", sizes, sharing="alone")
    for layout in LAYOUTS[1:]:
        for dtype in DTYPES:
            yield make_case(
                variant, dtype, "none", (2, 6, 6, 8, 1),
                sharing="alone", layouts=(layout,), suffix=layout,
            )
    for kind in ("none", "padding", "causal"):
        for dtype in DTYPES:
            yield make_case(variant, dtype, kind, (2, 5, 5, 12, 3), sharing="alone")


def inferred_lengths(variant):
    """002 where a reshape moves elements into the length axis."""
    shapes = (  # kind, embed, heads, values and keys, query
        ("uneven_heads", 5, 2, (1, 4, 5), (1, 4, 5)),
        ("uneven_heads", 6, 4, (1, 2, 6), (1, 2, 6)),
        ("uneven_heads", 7, 3, (2, 12, 7), (2, 6, 7)),
        ("folded_batch", 8, 2, (4, 3, 8), (2, 3, 8)),
        ("spread_batch", 8, 2, (1, 4, 8), (2, 3, 8)),
        ("wide_input", 8, 2, (1, 3, 16), (1, 3, 16)),
        ("other_rank", 8, 2, (3, 8), (3, 8)),
        ("other_rank", 8, 2, (2, 3, 1, 8), (2, 3, 1, 8)),
        ("other_rank", 8, 2, (16,), (1, 3, 8)),
    )
    for kind, embed, heads, memory, query in shapes:
        row = query[0] * heads * (embed // heads)
        keys, queries = math.prod(memory) // row, math.prod(query) // row
        for dtype, mask_kind in zip(DTYPES, ("causal", "padding", "none", "none")):
            layout = "sliced" if dtype == "bfloat16" else "contiguous"
            sizes = "x".join(map(str, memory))
            yield Case(
                variant, dtype, kind, f"{mask_kind}-{sizes}-e{embed}-h{heads}", embed, heads,
                inputs={"v": Input(memory, layout), "k": Input(memory), "q": Input(query, layout)},
                arguments=dict(zip(variant.arguments, "vkq")),
                mask=mask_of(mask_kind, query[0], heads, queries, keys),
            )


COMMON = (
    mask_kinds, head_sizes, lengths, input_layouts, mask_layouts, mask_values, causal_alignments,
    shared_inputs, odd_inputs,
)
ADDED = {"000": (), "001": (self_attention,), "002": (inferred_lengths,)}


def grid(variant_name):
    """All cases of a variant, in a fixed order, with unique names."""
    variant = VARIANTS[variant_name]
    groups = (*COMMON, *ADDED[variant.document], refusals)
    cases = [case for group in groups for case in group(variant)]
    assert len({case.name for case in cases}) == len(cases), "two cases have one name"
    return cases


def features(case):
    """What a snapshot must have one of."""
    kind = {("kind", case.kind)}
    if case.refused:
        return kind
    alone = len(case.arguments) == 1 and case.heads == 1  # all that the original 001 can run
    return kind | {
        ("mask", case.mask is not None, case.dtype),
        ("inputs", tuple(case.arguments.values())),
        ("alone", alone, case.dtype),
        *(("layout", layout) for layout in case.layouts),
    }


def snapshot(cases):
    """The few, small cases of a grid that together have every feature of it, the dtypes in turn."""
    candidates = [case for case in cases if case.refused or not case.trivial]
    missing = set().union(*map(features, candidates))
    names, used = set(), Counter()

    def worth(case):
        return len(features(case) & missing), -case.elements, -used[case.dtype]

    while missing:
        best = max(candidates, key=worth)
        missing -= features(best)
        used[best.dtype] += not best.refused
        names.add(best.name)
    return [case for case in cases if case.name in names]
