#include "io/torch_tensor.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "io/checked.h"
#include "io/formatted.h"
#include "io/text.h"

namespace self_attention::io {
namespace {

using Ids = std::span<const PickleId>;

constexpr std::string_view kUtils = "torch._utils";
constexpr std::string_view kTensorModule = "torch._tensor";

constexpr std::array<std::pair<std::string_view, ElementType>, 10> kStorageClasses = {{
    {"BoolStorage", ElementType::kBool},
    {"ByteStorage", ElementType::kUInt8},
    {"CharStorage", ElementType::kInt8},
    {"ShortStorage", ElementType::kInt16},
    {"IntStorage", ElementType::kInt32},
    {"LongStorage", ElementType::kInt64},
    {"HalfStorage", ElementType::kFloat16},
    {"BFloat16Storage", ElementType::kBFloat16},
    {"FloatStorage", ElementType::kFloat32},
    {"DoubleStorage", ElementType::kFloat64},
}};

/// The type whose storage class `id` is. Old files name the classes of torch.cuda.
std::optional<ElementType> storage_class(const Pickle& pickle, PickleId id) {
  for (const auto& [name, type] : kStorageClasses) {
    if (pickle.is_global(id, "torch", name) || pickle.is_global(id, "torch.cuda", name)) {
      return type;
    }
  }
  return std::nullopt;
}

std::optional<ElementType> dtype(const Pickle& pickle, PickleId id) {
  const std::string name = pickle.global_name(id);
  constexpr std::string_view kPrefix = "torch.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  return element_type_from_name(std::string_view(name).substr(kPrefix.size()));
}

[[noreturn]] void unsupported(const std::string& what) { throw UnsupportedValue(what); }
[[noreturn]] void damaged(const std::string& what) { throw DamagedTensor(what); }

std::int64_t integer(const Pickle& pickle, PickleId id, std::string_view what) {
  const PickleValue value = pickle[id];
  if (value.kind != PickleKind::kInteger || value.integer < 0) {
    damaged(formatted(
        "{}: expected a number from 0 to 2^63-1, found {}", what,
        value.kind == PickleKind::kInteger ? std::to_string(value.integer) : pickle.describe(id)));
  }
  return value.integer;
}

/// A tuple of numbers, also one that is wrapped as torch.Size((...)).
std::vector<std::int64_t> integers(const Pickle& pickle, PickleId id, std::string_view what) {
  constexpr std::size_t kMostDimensions = 64;  // LibTorch's own limit
  if (pickle.is(id, PickleKind::kCall) && pickle.is_global(pickle[id].callee, "torch", "Size")) {
    const Ids arguments = pickle[pickle[id].arguments].items;
    if (arguments.size() == 1) id = arguments[0];
  }
  const PickleValue value = pickle[id];
  if (value.kind != PickleKind::kTuple || value.items.size() > kMostDimensions) {
    damaged(formatted("{}: expected a tuple of at most {} numbers, found {}", what, kMostDimensions,
                      pickle.describe(id)));
  }
  std::vector<std::int64_t> numbers;
  numbers.reserve(value.items.size());
  for (const PickleId item : value.items) numbers.push_back(integer(pickle, item, what));
  return numbers;
}

/// A call stripped of the calls around it that leave the tensor as it is.
struct Rebuild {
  PickleId function = kNoPickleId;
  PickleId arguments = kNoPickleId;
};

bool is_plain_class(const Pickle& pickle, PickleId id) {
  return pickle.is_global(id, "torch", "Tensor") ||
         pickle.is_global(id, "torch.nn.parameter", "Parameter") ||
         pickle.is_global(id, "torch.nn.parameter", "Buffer");
}

std::optional<Rebuild> find_rebuild(const Pickle& pickle, PickleId id) {
  // Real files nest two calls: _rebuild_parameter(_rebuild_tensor_v2(...)). The bound also ends
  // the walk through a value that contains itself.
  constexpr int kMostWrappers = 4;
  Rebuild call;
  for (int i = 0; i < kMostWrappers && pickle.is(id, PickleKind::kCall); ++i) {
    call = {pickle[id].callee, pickle[id].arguments};
    Ids arguments = pickle[call.arguments].items;
    // _rebuild_from_type_v2(function, class, arguments, state)
    if (pickle.is_global(call.function, kTensorModule, "_rebuild_from_type_v2")) {
      if (arguments.size() != 4 || !is_plain_class(pickle, arguments[1]) ||
          !pickle.is(arguments[2], PickleKind::kTuple)) {
        return std::nullopt;
      }
      call = {arguments[0], arguments[2]};
      arguments = pickle[call.arguments].items;
    }
    const bool wraps = pickle.is_global(call.function, kUtils, "_rebuild_parameter") ||
                       pickle.is_global(call.function, kUtils, "_rebuild_parameter_with_state");
    if (!wraps) return call;
    if (arguments.empty()) return std::nullopt;
    id = arguments.front();
  }
  return std::nullopt;
}

}  // namespace

std::string_view storage_class_name(ElementType type) {
  return std::ranges::find(kStorageClasses, type, [](auto& pair) { return pair.second; })->first;
}

bool is_tensor(const Pickle& pickle, PickleId id) {
  if (!pickle.is(id, PickleKind::kCall)) return false;
  const PickleValue callee = pickle[pickle[id].callee];
  return callee.kind == PickleKind::kGlobal && pickle[callee.callee].text.starts_with("torch.") &&
         pickle[callee.arguments].text.starts_with("_rebuild_");
}

PickledStorage read_storage_reference(const Pickle& pickle, PickleId id) {
  if (!pickle.is(id, PickleKind::kPersistent)) {
    damaged(formatted("storage: expected a reference, found {}", pickle.describe(id)));
  }
  const PickleId tuple = pickle[id].arguments;
  const Ids items = pickle[tuple].items;
  if (!pickle.is(tuple, PickleKind::kTuple) || items.size() < 5 || items.size() > 6 ||
      pickle[items[0]].text != "storage" || !pickle.is(items[2], PickleKind::kString)) {
    damaged(R"(storage: expected ("storage", class, key, place, size))");
  }
  // Files from before 2017 have storages that are views of others.
  if (items.size() == 6 && !pickle.is(items[5], PickleKind::kNone)) {
    unsupported("a tensor whose storage is a view of another");
  }
  PickledStorage storage;
  storage.key = pickle[items[2]].text;
  const std::optional<ElementType> type = storage_class(pickle, items[1]);
  storage.untyped = pickle.is_global(items[1], "torch.storage", "UntypedStorage");
  if (!type && !storage.untyped) {
    unsupported(
        formatted("a tensor in {}, a type that is not supported", pickle.global_name(items[1])));
  }
  storage.type = type.value_or(ElementType::kUInt8);
  const auto count = static_cast<std::uint64_t>(integer(pickle, items[4], "storage size"));
  const auto bytes = checked_multiply(count, element_size(storage.type));
  if (!bytes) damaged("storage size: it exceeds 64 bits");
  storage.bytes = *bytes;
  return storage;
}

PickledTensor read_tensor(const Pickle& pickle, PickleId id) {
  const std::optional<Rebuild> call = find_rebuild(pickle, id);
  if (!call) unsupported(pickle.describe(id));
  const auto is_call_of = [&](std::string_view name) {
    return pickle.is_global(call->function, kUtils, name);
  };
  // _rebuild_tensor(storage, offset, shape, strides)
  // _rebuild_tensor_v2(..., requires_grad, hooks[, metadata])
  // _rebuild_tensor_v3(..., requires_grad, hooks, dtype[, metadata])
  const bool v3 = is_call_of("_rebuild_tensor_v3");
  const std::size_t fixed = v3 ? 7 : is_call_of("_rebuild_tensor_v2") ? 6 : 4;
  if (fixed == 4 && !is_call_of("_rebuild_tensor")) {
    unsupported("the result of calling " + pickle.global_name(call->function));
  }
  const Ids arguments = pickle[call->arguments].items;
  if (arguments.size() < fixed || arguments.size() > fixed + 1) {
    damaged(formatted("expected {} values to rebuild it, found {}", fixed, arguments.size()));
  }
  if (arguments.size() > fixed && !pickle[arguments[fixed]].items.empty()) {
    unsupported("a tensor with a conjugate or negative bit");
  }
  const PickledStorage storage = read_storage_reference(pickle, arguments[0]);
  PickledTensor tensor;
  tensor.storage_key = storage.key;
  tensor.storage_bytes = storage.bytes;
  tensor.type = storage.type;
  if (v3) {
    const std::optional<ElementType> type = dtype(pickle, arguments[6]);
    if (!type) {
      unsupported(formatted("a tensor of {}, a type that is not supported",
                            pickle.global_name(arguments[6])));
    }
    tensor.type = *type;
  } else if (storage.untyped) {
    damaged("its storage has no type");
  }
  tensor.storage_offset = static_cast<std::uint64_t>(integer(pickle, arguments[1], "offset"));
  tensor.shape = integers(pickle, arguments[2], "shape");
  tensor.strides = integers(pickle, arguments[3], "strides");
  if (tensor.shape.size() != tensor.strides.size()) {
    damaged(formatted("shape {} does not fit strides {}", shape_text(tensor.shape),
                      shape_text(tensor.strides)));
  }
  return tensor;
}

}  // namespace self_attention::io
