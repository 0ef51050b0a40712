#include "io/pickle_writer.h"

#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "io/checked.h"
#include "io/little_endian.h"
#include "io/pickle_opcodes.h"
#include "io/torch_tensor.h"

namespace self_attention::io {
namespace {

class PickleWriter {
 public:
  void op(Opcode opcode) { out_ += static_cast<char>(opcode); }

  void protocol(int version) {
    op(Opcode::kProto);
    out_ += static_cast<char>(version);
  }

  void global(std::string_view module, std::string_view name) {
    op(Opcode::kGlobal);
    out_.append(module).append("\n").append(name).append("\n");
  }

  void text(std::string_view value) {
    op(Opcode::kBinUnicode);
    append_little_endian(out_, static_cast<std::uint32_t>(value.size()));
    out_ += value;
  }

  void integer(std::int64_t value) {
    if (value <= std::numeric_limits<std::int32_t>::max()) {
      op(Opcode::kBinInt);
      append_little_endian(out_, static_cast<std::int32_t>(value));
    } else {
      op(Opcode::kLong1);
      append_little_endian(out_, static_cast<std::uint8_t>(sizeof(value)));
      append_little_endian(out_, value);
    }
  }

  void integers(std::span<const std::int64_t> values) {
    op(Opcode::kMark);
    for (const std::int64_t value : values) integer(value);
    op(Opcode::kTuple);
  }

  void empty_ordered_dict() {
    global("collections", "OrderedDict");
    op(Opcode::kEmptyTuple);
    op(Opcode::kReduce);
  }

  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

/// torch._utils._rebuild_tensor_v2(storage, offset, shape, strides, requires_grad, hooks)
void write_tensor(PickleWriter& out, const TensorDescription& tensor, std::size_t key) {
  const std::vector<std::int64_t> strides = contiguous_strides(tensor.shape);
  std::int64_t count = 1;
  for (const std::int64_t dimension : tensor.shape) count *= dimension;
  out.global("torch._utils", "_rebuild_tensor_v2");
  out.op(Opcode::kMark);
  out.op(Opcode::kMark);
  out.text("storage");
  out.global("torch", storage_class_name(tensor.type));
  out.text(std::to_string(key));
  out.text("cpu");
  out.integer(count);
  out.op(Opcode::kTuple);
  out.op(Opcode::kBinPersistentId);
  out.integer(0);
  out.integers(tensor.shape);
  out.integers(strides);
  out.op(Opcode::kNewFalse);
  out.empty_ordered_dict();
  out.op(Opcode::kTuple);
  out.op(Opcode::kReduce);
}

}  // namespace

std::string pickle_state_dict(std::span<const TensorDescription> tensors) {
  PickleWriter out;
  out.protocol(2);
  out.empty_ordered_dict();
  out.op(Opcode::kMark);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    out.text(tensors[i].name);
    write_tensor(out, tensors[i], i);
  }
  out.op(Opcode::kSetItems);
  out.op(Opcode::kStop);
  return out.take();
}

}  // namespace self_attention::io
