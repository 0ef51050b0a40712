#include "io/safetensors_json.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "io/format_error.h"
#include "io/formatted.h"
#include "io/text.h"

namespace self_attention::io {
namespace {

using Json = nlohmann::json;

/// LibTorch's tensor iterators stop at 64 dimensions.
constexpr std::size_t kMostDimensions = 64;

/// Takes the parser's events. The states are the only places a valid header has, so anything nested
/// deeper is refused at its first bracket, and memory stays proportional to the text.
class HeaderHandler final : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderHandler(const std::string& path) : path_(path) {}

  SafetensorsJson take() { return std::move(result_); }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return unexpected("a fraction or a number beyond 64 bits");
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kList) return unexpected("a number");
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return unexpected("a number beyond 63 bits");
    }
    if (list_->size() == kMostDimensions) {
      return unexpected(formatted("a list of more than {} numbers", kMostDimensions));
    }
    list_->push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadata) {
      if (!result_.metadata.emplace(key_, value).second) return duplicate("__metadata__");
      return true;
    }
    if (state_ != State::kTensor || key_ != "dtype") return unexpected("a string");
    result_.tensors.back().dtype = std::move(value);
    return true;
  }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kHeader;
        return true;
      case State::kHeader:
        if (key_ != "__metadata__") {
          result_.tensors.push_back({key_, {}, {}, {}});
          state_ = State::kTensor;
          return true;
        }
        if (has_metadata_) return duplicate("the header");
        has_metadata_ = true;
        state_ = State::kMetadata;
        return true;
      default:
        return unexpected("an object");
    }
  }

  bool key(string_t& value) override {
    key_ = std::move(value);
    if (state_ != State::kTensor) return true;
    const SafetensorsJsonTensor& tensor = result_.tensors.back();
    if (key_ == "dtype") return !tensor.dtype || duplicate(in_quotes(tensor.name));
    if (key_ == "shape") return !tensor.shape || duplicate(in_quotes(tensor.name));
    if (key_ == "data_offsets") return !tensor.data_offsets || duplicate(in_quotes(tensor.name));
    return fail(formatted("tensor {}: expected dtype, shape and data_offsets, found {}",
                          in_quotes(tensor.name), in_quotes(key_)));
  }

  bool end_object() override {
    state_ = state_ == State::kHeader ? State::kEnd : State::kHeader;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ != State::kTensor || key_ == "dtype") return unexpected("a list");
    SafetensorsJsonTensor& tensor = result_.tensors.back();
    list_ = &(key_ == "shape" ? tensor.shape : tensor.data_offsets).emplace();
    state_ = State::kList;
    return true;
  }

  bool end_array() override {
    state_ = State::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& token,
                   const Json::exception&) override {
    return fail(
        formatted("expected JSON, found {} at byte {} of the header", in_quotes(token), position));
  }

 private:
  enum class State { kStart, kHeader, kMetadata, kTensor, kList, kEnd };

  /// Where the parser stands, in the words of the message.
  std::string place() const {
    switch (state_) {
      case State::kMetadata:
        return formatted("__metadata__ {}: expected a string", in_quotes(key_));
      case State::kTensor:
        return formatted("tensor {}: {}: expected {}", in_quotes(result_.tensors.back().name), key_,
                         key_ == "dtype" ? "a string" : "a list of numbers");
      case State::kList:
        return formatted("tensor {}: {}: expected numbers from 0 to 2^63-1",
                         in_quotes(result_.tensors.back().name), key_);
      case State::kHeader:
        return formatted("{}: expected an object", in_quotes(key_));
      default:
        return "expected one JSON object";
    }
  }

  bool unexpected(const std::string& found) const {
    return fail(formatted("{}, found {}", place(), found));
  }

  bool duplicate(const std::string& owner) const {
    return fail(formatted("{} holds {} twice", owner, in_quotes(key_)));
  }

  [[noreturn]] bool fail(const std::string& what) const {
    throw FormatError(formatted("{}: safetensors header: {}", path_, what));
  }

  const std::string& path_;
  SafetensorsJson result_;
  State state_ = State::kStart;
  std::string key_;
  std::vector<std::int64_t>* list_ = nullptr;
  bool has_metadata_ = false;
};

}  // namespace

SafetensorsJson parse_safetensors_json(const std::string& path, std::span<const std::byte> text) {
  HeaderHandler handler(path);
  const auto* first = reinterpret_cast<const char*>(text.data());
  Json::sax_parse(first, first + text.size(), &handler);
  return handler.take();
}

}  // namespace self_attention::io
