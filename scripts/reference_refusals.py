"""Constructions and calls that the library refuses, with the words its message must hold."""

from reference_spec import Case, Input, Mask

EMBED, HEADS = 8, 2


def refusals(variant):
    """All refusals of a variant. The Python classes let some of them through by accident."""
    yield from constructions(variant)
    yield from dtypes(variant)
    yield from masks(variant)
    if variant.document == "002":
        yield from reshapes(variant)
    else:
        yield from shapes(variant)
    if variant.document == "001":
        yield from lone_arguments(variant)
        yield from self_attention(variant)


def tag(variant):
    return f"[{variant.class_name}]"


def separate(variant, values=(2, 5, 8), keys=(2, 5, 8), query=(2, 3, 8), dtypes=("float32",) * 3):
    """Inputs and arguments of a call with three tensors."""
    inputs = {
        name: Input(shape, dtype=dtype)
        for name, shape, dtype in zip(variant.arguments, (values, keys, query), dtypes)
    }
    return inputs, {name: name for name in inputs}


def same(variant, shape, dtype="float32"):
    """Inputs and arguments of a call with one tensor in all three places."""
    return {"x": Input(shape, dtype=dtype)}, dict.fromkeys(variant.arguments, "x")


def refused(variant, kind, label, argument, words, call, *, mask=None, sizes=(EMBED, HEADS)):
    """A refused call (inputs, arguments) of a module of sizes (embed, heads).

    argument: the one that the message names, None where it may name any of several.
    """
    named = () if argument is None else (f"{argument}:",)
    return Case(
        variant, "float32", kind, label, *sizes, *call, mask=mask,
        words=(tag(variant), *named, *words),
    )


def constructions(variant):
    """Numbers that no module can be made of; 002 need not divide."""
    embed, heads = variant.embed_argument, variant.heads_argument
    rejected = [
        (8, 0, heads, "got 0"),
        (8, -2, heads, "got -2"),
        (0, 2, embed, "got 0"),
        (-8, 2, embed, "got -8"),
        (2, 4, heads, f"{embed}=2"),
    ]
    if variant.document != "002":
        rejected += [(5, 2, heads, f"{embed}=5"), (8, 3, heads, f"{embed}=8")]
    for size, count, argument, words in rejected:
        yield Case(
            variant, "float32", "constructor", f"e{size}-h{count}", size, count,
            words=(tag(variant), f"{argument}:", words),
        )


def dtypes(variant):
    """Integer inputs, and floating ones that are not the parameters' dtype."""
    for wrong, argument in enumerate(variant.arguments):
        for dtype in ("int64", "float64"):
            mixed = ["float32"] * 3
            mixed[wrong] = dtype
            yield refused(
                variant, "input_dtype", f"{dtype}-{argument}", argument, (dtype,),
                separate(variant, dtypes=mixed),
            )
    for dtype in ("int32", "bool", "float64", "bfloat16"):
        yield refused(
            variant, "input_dtype", f"{dtype}-same", None, (dtype,), same(variant, (2, 3, 8), dtype)
        )


def masks(variant):
    """Masks that do not fit the scores, or would make them larger."""
    # label, (N, Q, K), heads, shape of the mask; Q and K of 1 invite a mask that enlarges.
    rejected = (
        ("batch_keys", (2, 3, 5), 2, (2, 5)),
        ("keys_too_long", (2, 3, 5), 2, (2, 1, 1, 6)),
        ("queries_differ", (2, 3, 5), 2, (4, 5)),
        ("batch_differs", (2, 3, 5), 2, (3, 1, 1, 5)),
        ("heads_differ", (2, 3, 5), 2, (2, 3, 1, 5)),
        ("batch_without_heads", (3, 3, 5), 2, (3, 3, 5)),
        ("rank_five", (2, 3, 5), 2, (1, 2, 2, 3, 5)),
        ("enlarges_batch", (1, 3, 5), 2, (3, 1, 1, 5)),
        ("enlarges_heads", (2, 3, 5), 1, (1, 4, 1, 5)),
        ("enlarges_queries", (2, 1, 5), 2, (4, 5)),
        ("enlarges_keys", (2, 3, 1), 2, (2, 1, 1, 4)),
        ("empty", (2, 3, 5), 2, (2, 1, 1, 0)),
    )
    for label, (batch, queries, keys), heads, shape in rejected:
        memory = (batch, keys, EMBED)
        call = separate(variant, memory, memory, (batch, queries, EMBED))
        # Where the mask is (N, K), the message shows the padding mask that was meant.
        meant = ((batch, 1, 1, keys),) if label == "batch_keys" else ()
        yield refused(
            variant, "mask_shape", label, "mask", tuple(map(str, (shape, *meant))), call,
            mask=Mask("everything", shape), sizes=(EMBED, heads),
        )


def shapes(variant):
    """Ranks, lengths, batches and widths of 000 and 001."""
    # Each is wrong in one argument; where any of several could be named, None.
    one_wrong = [
        ("rank", "values_two", "values", {"values": (5, 8)}),
        ("rank", "keys_four", "keys", {"keys": (2, 5, 1, 8)}),
        ("rank", "query_two", "query", {"query": (3, 8)}),
        ("rank", "query_none", "query", {"query": ()}),
        ("length", "values_longer", "values", {"values": (2, 6, 8)}),
        ("length", "values_one", "values", {"values": (2, 1, 8)}),
        ("length", "values_empty", "values", {"values": (2, 0, 8)}),
        ("batch", "keys_larger", "keys", {"keys": (4, 5, 8)}),
        ("batch", "keys_one", "keys", {"keys": (1, 5, 8)}),
        ("batch", "values_larger", "values", {"values": (3, 5, 8)}),
        ("width", "values_wide", "values", {"values": (2, 5, 16)}),
        ("width", "keys_narrow", "keys", {"keys": (2, 5, 4)}),
        ("width", "query_wide", "query", {"query": (2, 3, 9)}),
    ]
    for kind, label, argument, wrong in one_wrong:
        words = (str(wrong[argument]),)
        yield refused(variant, kind, label, argument, words, separate(variant, **wrong))
    both_wrong = (
        ("batch", "memory_larger", (4, 5, 8)),
        ("batch", "memory_one", (1, 5, 8)),
        ("batch", "memory_as_many_elements", (4, 5, 4)),
    )
    for kind, label, shape in both_wrong:
        call = separate(variant, values=shape, keys=shape)
        yield refused(variant, kind, label, None, (str(shape),), call)
    for label, shape in (("two", (3, 8)), ("four", (2, 3, 1, 8))):
        yield refused(variant, "rank", f"same_{label}", None, (str(shape),), same(variant, shape))
    yield refused(variant, "width", "same_wide", None, ("(1, 3, 16)",), same(variant, (1, 3, 16)))


def lone_arguments(variant):
    """001 with one of keys and query."""
    for given, missing in (("keys", "query"), ("query", "keys")):
        inputs = {"values": Input((2, 5, 8)), given: Input((2, 5, 8))}
        call = (inputs, {name: name for name in inputs})
        yield refused(variant, "lone_argument", given, missing, (), call)


def self_attention(variant):
    """001 as forward(x)."""
    for kind, label, tensor, word in (
        ("rank", "two", Input((3, 8)), "(3, 8)"),
        ("rank", "four", Input((2, 3, 1, 8)), "(2, 3, 1, 8)"),
        ("width", "wide", Input((1, 3, 16)), "(1, 3, 16)"),
        ("input_dtype", "int64", Input((2, 3, 8), dtype="int64"), "int64"),
    ):
        call = ({"x": tensor}, {"values": "x"})
        yield refused(variant, kind, f"alone_{label}", "values", (word,), call, sizes=(EMBED, 1))


def reshapes(variant):
    """002 where a reshape does not come out, or comes out with lengths that do not fit."""
    yield refused(
        variant, "reshape", "uneven_heads", None, ("(1, 3, 5)",), same(variant, (1, 3, 5)),
        sizes=(5, 2),
    )
    for label, argument, came, shapes in (
        ("keys_odd", "keys", (1, 5, 8), {"keys": (1, 5, 8)}),
        ("values_odd", "values", (1, 5, 8), {"values": (1, 5, 8)}),
        ("query_odd", "queries", (1, 3, 9), {"query": (1, 3, 9)}),
        ("query_vector", "queries", (8,), {"values": (8, 1, 8), "keys": (8, 1, 8), "query": (8,)}),
    ):
        call = separate(variant, **shapes)
        yield refused(variant, "reshape", label, argument, (str(came),), call)
    yield refused(variant, "rank", "query_none", "queries", ("()",), separate(variant, query=()))
    for label, shape in (("empty_batch", (0, 3, 8)), ("empty_batch_and_length", (0, 0, 8))):
        call = separate(variant, (0, 5, 8), (0, 5, 8), shape)
        yield refused(variant, "batch", label, "queries", (str(shape),), call)
    # Lengths are compared after the reshapes: 6 with 5, 10 with 5, and 1 with 5.
    for label, shape in (("longer", (2, 6, 8)), ("folded", (4, 5, 8)), ("one", (2, 1, 8))):
        call = separate(variant, values=shape)
        yield refused(variant, "length", f"values_{label}", "values", (), call)
    # Heads of 2 from 5 features make 5 rows of 4, so a mask for 4 does not fit.
    yield refused(
        variant, "mask_shape", "before_reshape", "mask", ("(4, 4)",), same(variant, (1, 4, 5)),
        mask=Mask("causal", (4, 4)), sizes=(5, 2),
    )
