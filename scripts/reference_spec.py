"""What a reference case is made of: variants, inputs, masks, cases. Plain data, no tensors."""

import math
from dataclasses import dataclass, field

DTYPES = ("float64", "float32", "bfloat16", "float16")
LAYOUTS = ("contiguous", "transposed_batch", "transposed_embed", "sliced", "expanded")


@dataclass(frozen=True)
class Variant:
    """One of the three classes: its names, and its parameters in the order of registration."""

    name: str
    document: str
    class_name: str
    embed_argument: str
    heads_argument: str
    query_argument: str

    @property
    def arguments(self):
        """The tensors that forward takes, in order."""
        return "values", "keys", self.query_argument

    def parameter_shapes(self, embed, heads):
        """State-dict name -> shape."""
        if self.document == "001":
            layers = ("q_linear", "k_linear", "v_linear", "output_linear")
            return {
                f"{layer}.{part}": shape
                for layer in layers
                for part, shape in (("weight", (embed, embed)), ("bias", (embed,)))
            }
        head_dim = embed // heads
        shared = ("values.weight", "keys.weight", "queries.weight")
        return {
            **dict.fromkeys(shared, (head_dim, head_dim)),
            "fc_out.weight": (embed, heads * head_dim),
            "fc_out.bias": (embed,),
        }


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant(
            "shared_projection", "000", "SharedProjectionAttention", "embed_size", "heads", "query"
        ),
        Variant(
            "full_projection", "001", "FullProjectionAttention", "embed_dim", "num_heads", "query"
        ),
        Variant(
            "inferred_length", "002", "InferredLengthAttention", "embed_size", "heads", "queries"
        ),
    )
}


@dataclass(frozen=True)
class Input:
    """A random input tensor. dtype: the case's unless given; first: its first number if given."""

    shape: tuple
    layout: str = "contiguous"
    dtype: str | None = None
    first: float | None = None


@dataclass(frozen=True)
class Mask:
    """A mask: which entries keep (pattern), and the numbers that say keep and drop, in turn.

    Patterns: random (every row keeps a key), padding (a kept prefix), causal (tril(diagonal)),
    rows (some rows of the last-but-one axis keep nothing), first (only entry 0 of a row is
    dropped), last, everything, nothing.
    """

    pattern: str
    shape: tuple
    dtype: str = "bool"
    layout: str = "contiguous"
    diagonal: int = 0
    keeps: tuple = (1,)
    drops: tuple = (0,)


@dataclass(frozen=True)
class Case:
    """One forward and backward of one module, or a call or construction that must be refused."""

    variant: Variant
    dtype: str
    kind: str  # the mask's kind, or what else the case is about: the rows of parity's table
    label: str
    embed: int
    heads: int
    inputs: dict = field(default_factory=dict)  # name -> Input
    arguments: dict = field(default_factory=dict)  # argument of forward -> name of the input
    mask: Mask | None = None
    identity_weights: bool = False
    words: tuple = ()  # not empty: the library refuses, and its message holds them

    @property
    def name(self):
        return f"{self.variant.name}/{self.dtype}/{self.kind}/{self.label}"

    @property
    def refused(self):
        return bool(self.words)

    @property
    def input_shapes(self):
        return [tensor.shape for tensor in self.inputs.values()]

    @property
    def elements(self):
        """Numbers that the case is made of."""
        shapes = self.input_shapes
        if not self.refused:
            shapes += self.variant.parameter_shapes(self.embed, self.heads).values()
        return sum(map(math.prod, shapes))

    @property
    def trivial(self):
        """Whether a length is 0, or a head a single feature."""
        return self.heads == self.embed or 0 in map(math.prod, self.input_shapes)

    @property
    def layouts(self):
        return {tensor.layout for tensor in self.inputs.values()}
