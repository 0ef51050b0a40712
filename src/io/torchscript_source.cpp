#include "io/torchscript_source.h"

#include <array>
#include <cmath>

#include "io/formatted.h"
#include "io/torchscript_fused.h"

namespace self_attention::io {
namespace {

// In these texts {0} is the module, {1} E, {2} H, {3} d, {4} the name of the query argument, {5}
// the divisor of the scores.
//
// TorchScript computes gradients of neighbouring operators by formulas of its own, which multiply
// and sum in another order. It has none for transpose, view, reshape, masked_fill and einsum, and
// none across branches. Every linear and matmul is kept apart from its neighbours by these, where
// it can be by the branch of a check, which costs nothing; so LibTorch's own gradients are taken.

// All of a script is inlined into forward, and each of its values, those of the error texts too,
// is set up at every call: so a text is made in one place, of few values.
constexpr std::string_view kTexts = R"script(
def _text(self, argument: str, expected: str, count: str, got: List[int]) -> str:
    shape = "(" + str(got)[1:-1] + (",)" if len(got) == 1 else ")")
    return "[{0}] " + argument + ": expected " + expected + ", got " + count + shape
)script";

constexpr std::string_view kMaskTexts = R"script(
def _check_mask(self, mask: List[int], scores: List[int]) -> None:
    first = 4 - len(mask)
    fits = first >= 0
    if fits:
        for axis in range(first, 4):
            size = mask[axis - first]
            if size != 1 and size != scores[axis]:
                fits = False
    if not fits:
        n, h, q, k = str(scores[0]), str(scores[1]), str(scores[2]), str(scores[3])
        expected = "a shape that broadcasts to (N=" + n + ", H=" + h + ", Q=" + q + ", K=" + k + ")"
        padding = "; a padding mask is (" + n + ", 1, 1, " + k + ")"
        raise ValueError(self._text("mask", expected, "", mask) + padding)
)script";

constexpr std::string_view kSequenceTexts = R"script(
def _inputs_text(self, values: List[int], keys: List[int], query: List[int]) -> str:
    argument, expected, count, got = "{4}", "shape (N, Q, E={1})", "", query
    if len(query) == 3 and query[2] == {1}:
        n = query[0]
        argument, expected, got = "values", "shape (N=" + str(n) + ", K, E={1})", values
        if len(values) == 3 and values[0] == n and values[2] == {1}:
            argument, got = "keys", keys
            if len(keys) == 3 and keys[0] == n and keys[2] == {1}:
                argument, expected = "values", "as many positions as keys, K=" + str(keys[1])
                count, got = str(values[1]) + " in ", values
    return self._text(argument, expected, count, got)
)script";

constexpr std::string_view kInferredTexts = R"script(
def _length(self, argument: str, input: Tensor, batch: int) -> int:
    elements = input.numel()
    rows = elements // ({2} * {3})
    if (elements % ({2} * {3}) != 0) | (rows % batch != 0):
        expected = "a multiple of N*H*d = " + str(batch) + "*{2}*{3} elements"
        raise ValueError(self._text(argument, expected, str(elements) + " in ", input.size()))
    return rows // batch
)script";

// What forward begins with: checks, and the sizes batch (N), rows (Q) and length (K). What becomes
// the scores is in the last check's branch. Lists are compared whole and with `&`, which costs a
// fraction of comparing their numbers one by one.
constexpr std::string_view kSequenceSizes = R"script(
    v_size, k_size, q_size = values.size(), keys.size(), query.size()
    batch, rows, length = 0, 0, 0
    fits = (len(q_size) == 3) & (len(k_size) == 3)
    if fits:
        batch, rows, length = q_size[0], q_size[1], k_size[1]
        fits = (v_size == k_size) & (k_size == [batch, length, {1}]) & (q_size[2] == {1})
    if not fits:
        raise ValueError(self._inputs_text(v_size, k_size, q_size))
    else:
)script";

// Two checks, whose branches keep softmax apart from both products.
constexpr std::string_view kSingleSizes = R"script(
    size = x.size()
    if len(size) != 3:
        raise ValueError(self._text("x", "shape (N, Q, E={1})", "", size))
    else:
        batch, rows, length = size[0], size[1], size[1]
        if size[2] != {1}:
            raise ValueError(self._text("x", "shape (N, Q, E={1})", "", size))
        else:
)script";

constexpr std::string_view kInferredSizes = R"script(
    q_size = queries.size()
    batch = 0 if len(q_size) == 0 else q_size[0]
    if batch < 1:
        expected = "a batch of at least one, (N >= 1, Q, E)"
        raise ValueError(self._text("queries", expected, "", q_size))
    length = self._length("keys", keys, batch)
    rows = self._length("queries", queries, batch)
    v_length = length
    if values.size() != keys.size():
        v_length = self._length("values", values, batch)
    if v_length != length:
        expected = "as many positions as keys, K=" + str(length)
        raise ValueError(self._text("values", expected, str(v_length) + " in ", values.size()))
    else:
)script";

constexpr std::string_view kSharedProjections = R"script(
        v = torch.linear(values.reshape([batch, length, {2}, {3}]), self.values.weight)
        k = torch.linear(keys.reshape([batch, length, {2}, {3}]), self.keys.weight)
        q = torch.linear({4}.reshape([batch, rows, {2}, {3}]), self.queries.weight)
)script";

constexpr std::string_view kFullViews = R"script(
        value_rows = values.view([batch, length, 1, {1}]).transpose(1, 2)
        key_rows = keys.view([batch, length, 1, {1}]).transpose(1, 2)
        query_rows = query.view([batch, rows, 1, {1}]).transpose(1, 2)
)script";

// One view for all three: its gradients then meet in one place, in the order of the C++ module.
constexpr std::string_view kSingleView = R"script(
        value_rows = x.view([batch, length, 1, {1}]).transpose(1, 2)
        key_rows = value_rows
        query_rows = value_rows
)script";

constexpr std::string_view kFullProjections = R"script(
        q = torch.linear(query_rows, self.q_linear.weight, self.q_linear.bias)
        k = torch.linear(key_rows, self.k_linear.weight, self.k_linear.bias)
        v = torch.linear(value_rows, self.v_linear.weight, self.v_linear.bias)
)script";

// The product that einsum makes of (N, Q, H, d) and (N, K, H, d), without reading an equation.
constexpr std::string_view kSharedScores = R"script(
        scores = torch.matmul(q.transpose(1, 2), k.transpose(1, 2).transpose(2, 3))
)script";

// Heads of a single feature, which matmul multiplies in another way than einsum.
constexpr std::string_view kNarrowScores = R"script(
        scores = torch.einsum("nqhd,nkhd->nhqk", [q, k])
)script";

// One head is not split. The view changes nothing: it keeps the product apart from q's projection.
constexpr std::string_view kOneHeadScores = R"script(
        q = q.view([batch, 1, rows, {1}])
        scores = torch.matmul(q, k.transpose(2, 3))
)script";

constexpr std::string_view kSplitScores = R"script(
        q = q.reshape([batch, rows, {2}, {3}]).transpose(1, 2)
        k = k.reshape([batch, length, {2}, {3}]).transpose(1, 2).transpose(2, 3)
        v = v.reshape([batch, length, {2}, {3}]).transpose(1, 2)
        scores = torch.matmul(q, k)
)script";

constexpr std::string_view kPlainWeights = R"script(
    weights = torch.softmax(scores / {5}, -1)
)script";

// The view changes nothing: it keeps the product that follows apart.
constexpr std::string_view kWeightsApart = R"script(
    weights = weights.view([batch, {2}, rows, length])
)script";

// The usual shapes pass by one comparison. The dtypes are 5 float16 and 6 float32.
constexpr std::string_view kMaskedWeights = R"script(
    m_size = mask.size()
    if m_size != [batch, 1, 1, length]:
        if m_size != [rows, length]:
            self._check_mask(m_size, [batch, {2}, rows, length])
    half = scores.dtype == 5
    if half:
        scores = scores.to(6).masked_fill(mask == 0, -1e20)
    else:
        scores = scores.masked_fill(mask == 0, -1e20)
    weights = torch.softmax(scores / {5}, -1)
    if half:
        weights = weights.to(5)
)script";

// A single key is no sum: einsum multiplies by it, which keeps the sign of a zero.
constexpr std::string_view kSharedOutput = R"script(
    if length == 1:
        merged = torch.einsum("nhql,nlhd->nqhd", [weights, v])
    else:
        merged = torch.matmul(weights, v.transpose(1, 2)).transpose(1, 2)
    merged = merged.reshape([batch, rows, {2} * {3}])
    return torch.linear(merged, self.fc_out.weight, self.fc_out.bias)
)script";

constexpr std::string_view kOneHeadMerged = R"script(
    merged = torch.matmul(weights, v).view([batch, rows, {1}])
)script";

constexpr std::string_view kSplitMerged = R"script(
    merged = torch.matmul(weights, v).transpose(1, 2).contiguous().view([batch, rows, {1}])
)script";

constexpr std::string_view kFullOutput = R"script(
    return torch.linear(merged, self.output_linear.weight, self.output_linear.bias)
)script";

/// The shortest text that TorchScript reads as exactly this floating number.
std::string float_text(double number) {
  const std::string text = formatted("{}", number);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

/// The text without its first line break and with the form in its places.
std::string filled(std::string_view text, const ScriptForm& form) {
  const bool inferred = form.variant == ScriptVariant::kInferredLength;
  const bool full = form.variant == ScriptVariant::kFullProjection;
  const char* query = form.inputs == ScriptInputs::kSingle ? "x" : inferred ? "queries" : "query";
  const std::int64_t scaled_by = full ? form.head_dim() : form.embed;
  const std::string divisor = float_text(std::pow(static_cast<double>(scaled_by), 0.5));
  return formatted(fmt::runtime(text.substr(1)), module_name(form.variant), form.embed, form.heads,
                   form.head_dim(), query, divisor);
}

std::string indented(const std::string& block) {
  std::string text;
  for (std::size_t start = 0; start < block.size();) {
    const std::size_t end = block.find('\n', start) + 1;
    text += "    " + block.substr(start, end - start);
    start = end;
  }
  return text;
}

/// The lines that make `weights` of scores, apart from what follows.
std::string weights_text(const ScriptForm& form) {
  std::string plain = filled(kPlainWeights, form);
  std::string masked = filled(kMaskedWeights, form);
  switch (form.mask) {
    case ScriptMask::kRequired:
      return masked;
    case ScriptMask::kNone:
      return plain + filled(kWeightsApart, form);
    case ScriptMask::kOptional:
      break;
  }
  return "    if mask is None:\n" + indented(plain) + "    else:\n" + indented(masked);
}

/// forward after its signature, of the modules whose heads share one matrix a role.
std::string shared_heads_text(const ScriptForm& form) {
  const bool inferred = form.variant == ScriptVariant::kInferredLength;
  return filled(inferred ? kInferredSizes : kSequenceSizes, form) +
         filled(kSharedProjections, form) +
         filled(form.head_dim() > 1 ? kSharedScores : kNarrowScores, form) + weights_text(form) +
         filled(kSharedOutput, form);
}

std::string full_projection_text(const ScriptForm& form) {
  const bool single = form.inputs == ScriptInputs::kSingle;
  const bool splits = form.heads > 1;
  std::string scores = filled(single ? kSingleView : kFullViews, form) +
                       filled(kFullProjections, form) +
                       filled(splits ? kSplitScores : kOneHeadScores, form);
  if (single) scores = indented(scores);
  const bool in_branch = single && form.mask == ScriptMask::kNone;
  return filled(single ? kSingleSizes : kSequenceSizes, form) + scores +
         (in_branch ? indented(filled(kPlainWeights, form)) : weights_text(form)) +
         filled(splits ? kSplitMerged : kOneHeadMerged, form) + filled(kFullOutput, form);
}

constexpr std::array<std::string_view, 38> kPortableOperators = {
    "aten::__derive_index(int index, int start, int step) -> int",
    "aten::__getitem__.t(t[](a) list, int idx) -> t(*)",
    "aten::__and__.bool(bool a, bool b) -> bool",
    "aten::__is__(t1 self, t2 obj) -> bool",
    "aten::__not__(bool self) -> bool",
    "aten::__or__.bool(bool a, bool b) -> bool",
    "aten::__range_length(int lo, int hi, int step) -> int",
    "aten::add.str(str a, str b) -> str",
    "aten::contiguous(Tensor(a) self, *, MemoryFormat memory_format=0) -> Tensor(a)",
    "aten::div.Scalar(Tensor self, Scalar other) -> Tensor",
    "aten::einsum(str equation, Tensor[] tensors, *, int[]? path=None) -> Tensor",
    "aten::eq.Scalar(Tensor self, Scalar other) -> Tensor",
    "aten::eq.int(int a, int b) -> bool",
    "aten::eq.int_list(int[] a, int[] b) -> bool",
    "aten::floordiv.int(int a, int b) -> int",
    "aten::ge.int(int a, int b) -> bool",
    "aten::len.t(t[] a) -> int",
    "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
    "aten::lt.int(int a, int b) -> bool",
    "aten::masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor",
    "aten::matmul(Tensor self, Tensor other) -> Tensor",
    "aten::ne.int(int a, int b) -> bool",
    "aten::ne.int_list(int[] a, int[] b) -> bool",
    "aten::numel(Tensor self) -> int",
    "aten::remainder.int(int a, int b) -> int",
    "aten::reshape(Tensor(a) self, SymInt[] shape) -> Tensor(a)",
    "aten::size(Tensor self) -> int[]",
    "aten::slice.str(str string, int? start=None, int? end=None, int step=1) -> str",
    "aten::softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor",
    "aten::str(t elem) -> str",
    "aten::sub.int(int a, int b) -> int",
    "aten::to.dtype(Tensor(a) self, ScalarType dtype, bool non_blocking=False, bool "
    "copy=False, MemoryFormat? memory_format=None) -> Tensor(a)",
    "aten::transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)",
    "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)",
    "prim::RaiseException(str msg, str? cls=None) -> ()",
    "prim::Uninitialized() -> Any",
    "prim::dtype(Tensor a) -> int",
    "prim::unchecked_cast(t x) -> t",
};

}  // namespace

std::string_view variant_name(ScriptVariant variant) {
  switch (variant) {
    case ScriptVariant::kSharedProjection:
      return "shared_projection";
    case ScriptVariant::kFullProjection:
      return "full_projection";
    case ScriptVariant::kInferredLength:
      return "inferred_length";
  }
  return "";
}

std::string_view module_name(ScriptVariant variant) {
  switch (variant) {
    case ScriptVariant::kSharedProjection:
      return "SharedProjectionAttention";
    case ScriptVariant::kFullProjection:
      return "FullProjectionAttention";
    case ScriptVariant::kInferredLength:
      return "InferredLengthAttention";
  }
  return "";
}

std::string_view mask_name(ScriptMask mask) {
  switch (mask) {
    case ScriptMask::kRequired:
      return "required";
    case ScriptMask::kNone:
      return "none";
    case ScriptMask::kOptional:
      return "optional";
  }
  return "";
}

std::string_view inputs_name(ScriptInputs inputs) {
  return inputs == ScriptInputs::kSingle ? "single" : "separate";
}

std::string_view ops_name(ScriptOps ops) { return ops == ScriptOps::kFused ? "fused" : "portable"; }

std::vector<std::string> script_arguments(const ScriptForm& form) {
  std::vector<std::string> arguments = {"x"};
  if (form.inputs == ScriptInputs::kSeparate) {
    const bool inferred = form.variant == ScriptVariant::kInferredLength;
    arguments = {"values", "keys", inferred ? "queries" : "query"};
  }
  if (form.mask != ScriptMask::kNone) arguments.emplace_back("mask");
  return arguments;
}

std::string script_source(const ScriptForm& form) {
  std::string signature = "self";
  for (const std::string& argument : script_arguments(form)) {
    const bool optional = argument == "mask" && form.mask == ScriptMask::kOptional;
    signature += ", " + argument + (optional ? ": Optional[Tensor] = None" : ": Tensor");
  }
  const std::string begin = "def forward(" + signature + ") -> Tensor:\n";
  if (form.ops == ScriptOps::kFused) return begin + "    return " + fused_call(form) + "\n";
  const bool inferred = form.variant == ScriptVariant::kInferredLength;
  const bool full = form.variant == ScriptVariant::kFullProjection;
  const bool single = form.inputs == ScriptInputs::kSingle;
  return filled(kTexts, form) + (form.mask == ScriptMask::kNone ? "" : filled(kMaskTexts, form)) +
         (inferred ? filled(kInferredTexts, form)
          : single ? ""
                   : filled(kSequenceTexts, form)) +
         begin + (full ? full_projection_text(form) : shared_heads_text(form));
}

std::span<const std::string_view> portable_operators() { return kPortableOperators; }

}  // namespace self_attention::io
