#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "support/bytes.h"
#include "support/zip_builder.h"

/// Pieces of pickles, as text to be joined.
namespace self_attention::io_test::pickled {

inline std::string text(const std::string& value) {
  return std::string("X") + number(static_cast<std::uint32_t>(value.size())) + value;
}
inline std::string integer(std::int32_t value) { return std::string("J") + number(value); }
inline std::string long_integer(std::int64_t value) {
  return std::string("\x8a\x08") + number(value);
}
inline std::string global(const std::string& module, const std::string& name) {
  return std::string("c") + module + "\n" + name + "\n";
}
inline std::string joined(const std::vector<std::string>& values) {
  std::string all;
  for (const std::string& value : values) all += value;
  return all;
}
inline std::string tuple(const std::vector<std::string>& values) {
  return std::string("(") + joined(values) + "t";
}
inline std::string list(const std::vector<std::string>& values) {
  return std::string("](") + joined(values) + "e";
}
inline std::string integers(const std::vector<std::int32_t>& values) {
  std::string all;
  for (const std::int32_t value : values) all += integer(value);
  return std::string("(") + all + "t";
}
inline std::string call(const std::string& function, const std::string& arguments) {
  return function + arguments + "R";
}
using Items = std::vector<std::pair<std::string, std::string>>;
inline std::string items(const Items& values) {
  std::string all;
  for (const auto& [key, value] : values) all += text(key) + value;
  return std::string("(") + all + "u";
}
inline std::string dict(const Items& values) { return std::string("}") + items(values); }
inline std::string ordered_dict(const Items& values) {
  return call(global("collections", "OrderedDict"), ")") + items(values);
}
inline std::string object(const std::string& module, const std::string& name, const Items& state) {
  return global(module, name) + ")\x81" + dict(state) + "b";
}
inline std::string program(const std::string& body) { return std::string("\x80\x02") + body + "."; }

/// A tensor as torch.save words it. The members are pickles, so each can be made wrong.
struct TensorText {
  std::string storage_class = global("torch", "FloatStorage");
  std::string key = text("0");
  std::string place = text("cpu");
  std::string count = integer(6);
  std::string offset = integer(0);
  std::string shape = integers({2, 3});
  std::string strides = integers({3, 1});
  std::string more = {};  ///< after the hooks
  std::string function = global("torch._utils", "_rebuild_tensor_v2");

  std::string storage() const {
    return tuple({text("storage"), storage_class, key, place, count}) + "Q";
  }
  std::string arguments() const {
    return tuple({storage(), offset, shape, strides, "\x89", ordered_dict({}), more});
  }
  std::string operator()() const { return call(function, arguments()); }
};

/// A checkpoint around that pickle, whose storages "0", "1", ... have these bytes.
inline std::string checkpoint(const std::string& body, const std::vector<std::string>& storages,
                              std::vector<BuiltEntry> more = {}) {
  std::vector<BuiltEntry> entries = {{.name = "archive/data.pkl", .data = program(body)}};
  for (std::size_t i = 0; i < storages.size(); ++i) {
    entries.push_back({.name = "archive/data/" + std::to_string(i), .data = storages[i]});
  }
  entries.insert(entries.end(), more.begin(), more.end());
  return build_zip(entries);
}

/// A TorchScript archive around a pickled module.
inline std::string module_archive(const std::string& body,
                                  const std::vector<std::string>& storages) {
  return checkpoint(body, storages, {{.name = "archive/constants.pkl", .data = program(")")}});
}

/// A checkpoint of the legacy format: `storages` is all that follows the list of keys.
inline std::string legacy(const std::string& body, const std::vector<std::string>& keys,
                          const std::string& storages) {
  std::string key_texts;
  for (const std::string& key : keys) key_texts += text(key);
  return program(std::string("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 12)) +
         program("M\xe9\x03") + program(dict({{"little_endian", "\x88"}})) + program(body) +
         program("](" + key_texts + "e") + storages;
}

}  // namespace self_attention::io_test::pickled
