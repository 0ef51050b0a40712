#include "io/pickled_tensors.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "io/format_error.h"
#include "io/formatted.h"
#include "io/tensor_collector.h"
#include "io/text.h"
#include "io/torch_tensor.h"

namespace self_attention::io {
namespace {

using Ids = std::span<const PickleId>;

constexpr std::array<std::string_view, 3> kUsualKeys = {"state_dict", "model_state_dict", "model"};

/// C++'s torch::pickle_save wraps containers as restore_type_tag(container, type).
PickleId unwrap(const Pickle& pickle, PickleId id) {
  if (!pickle.is(id, PickleKind::kCall) ||
      !pickle.is_global(pickle[id].callee, "torch.jit._pickle", "restore_type_tag")) {
    return id;
  }
  const Ids arguments = pickle[pickle[id].arguments].items;
  return arguments.empty() ? id : arguments.front();
}

/// Finds the dict that a request for a state dict means.
class StateDictFinder {
 public:
  explicit StateDictFinder(const PickledFile& source)
      : path_(source.file.path()), pickle_(source.pickle), root_(unwrap(pickle_, pickle_.root())) {}

  PickleId root() const { return root_; }

  /// The dict that `key` names.
  PickleId find(const std::string& key) const {
    PickleId dict = root_;
    for (std::string_view rest = key; !rest.empty();) {
      std::size_t length = rest.size();
      std::optional<PickleId> child = lookup(dict, rest);
      if (!child) {
        length = std::min(rest.find('.'), rest.size());
        child = lookup(dict, rest.substr(0, length));
      }
      if (!child || !pickle_.is(*child, PickleKind::kDict)) {
        fail(formatted("expected a dict of tensors called {}, found {}", in_quotes(key),
                       child ? pickle_.describe(*child) : "none; " + list_keys(dict)));
      }
      dict = *child;
      rest.remove_prefix(std::min(length + 1, rest.size()));
    }
    return dict;
  }

  /// The key of the usual nested dict; empty for the top level.
  std::string usual_key() const {
    if (!pickle_.is(root_, PickleKind::kDict)) {
      fail(
          formatted("expected a state dict, found {}: in Python, save one with "
                    "torch.save(model.state_dict(), file)",
                    pickle_.describe(root_)));
    }
    std::vector<std::string> found;
    for (const std::string_view key : kUsualKeys) {
      const std::optional<PickleId> child = lookup(root_, key);
      if (child && has_tensors(*child)) found.emplace_back(key);
    }
    if (found.size() > 1) {
      fail(formatted("more than one state dict: name one of {}", joined(found, ", ")));
    }
    if (found.size() == 1) return found.front();
    if (!has_tensors(root_) && !pickle_[root_].items.empty()) {
      fail("no tensors at the top level; " + list_keys(root_));
    }
    return {};
  }

  std::string content(PickleId id) const {
    const bool dict = pickle_.is(id, PickleKind::kDict) && has_tensors(id);
    return dict ? "a dict of tensors" : is_tensor(pickle_, id) ? "a tensor" : pickle_.describe(id);
  }

 private:
  /// Also for a root that is not a dict.
  std::optional<PickleId> lookup(PickleId dict, std::string_view key) const {
    if (!pickle_.is(dict, PickleKind::kDict)) return std::nullopt;
    const Ids items = pickle_[dict].items;
    std::optional<PickleId> found;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const PickleValue name = pickle_[items[i]];
      // As in Python, the last of equal keys counts.
      if (name.kind == PickleKind::kString && name.text == key) {
        found = unwrap(pickle_, items[i + 1]);
      }
    }
    return found;
  }

  bool has_tensors(PickleId dict) const {
    const Ids items = pickle_[dict].items;
    if (!pickle_.is(dict, PickleKind::kDict)) return false;
    for (std::size_t i = 1; i < items.size(); i += 2) {
      if (is_tensor(pickle_, items[i])) return true;
    }
    return false;
  }

  /// The remedy of a failed search: what could have been asked for.
  std::string list_keys(PickleId dict) const {
    constexpr std::size_t kMost = 10;
    const Ids items = pickle_[dict].items;
    std::vector<std::string> keys;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (keys.size() == kMost) {
        keys.emplace_back("...");
        break;
      }
      keys.push_back(
          formatted("{} ({})", in_quotes(pickle_[items[i]].text), content(items[i + 1])));
    }
    return formatted("name the dict to read; the keys are: {}", joined(keys, ", "));
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(formatted("{}: {}", path_, what));
  }

  const std::string& path_;
  const Pickle& pickle_;
  PickleId root_;
};

std::string key_text(const Pickle& pickle, PickleId id) {
  const PickleValue key = pickle[id];
  if (key.kind == PickleKind::kInteger) return std::to_string(key.integer);
  return pickle.describe(id);
}

/// Walks modules depth first, in the order of their attributes.
class ModuleWalk {
 public:
  ModuleWalk(const PickledFile& source, TensorCollector& collector)
      : path_(source.file.path()), pickle_(source.pickle), collector_(collector) {}

  void add(PickleId module, const std::string& prefix, int depth) {
    constexpr int kDeepest = 100;
    if (depth > kDeepest) {
      throw FormatError(formatted("{}: modules nest deeper than {}", path_, kDeepest));
    }
    const PickleId state = pickle_[module].state;
    if (state == kNoPickleId || !pickle_.is(state, PickleKind::kDict)) return;
    const Ids items = pickle_[state].items;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const PickleId value = items[i + 1];
      if (!pickle_.is(items[i], PickleKind::kString)) continue;
      // A module that many others share is walked many times.
      collector_.charge(sizeof(TensorEntry) + prefix.size() + pickle_[items[i]].text.size());
      std::string name = prefix;
      name += pickle_[items[i]].text;
      if (is_tensor(pickle_, value)) {
        collector_.add(std::move(name), value);
      } else if (pickle_.is(value, PickleKind::kObject)) {
        add(value, name + ".", depth + 1);
      }
    }
  }

 private:
  const std::string& path_;
  const Pickle& pickle_;
  TensorCollector& collector_;
};

}  // namespace

void add_state_dict(const PickledFile& source, const std::string& key, TensorIndex& index) {
  const Pickle& pickle = source.pickle;
  const StateDictFinder finder(source);
  index.key = key.empty() ? finder.usual_key() : key;
  const PickleId dict = finder.find(index.key);
  TensorCollector collector(source, index);
  const Ids items = pickle[dict].items;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const PickleValue name = pickle[items[i]];
    if (name.kind == PickleKind::kString) {
      collector.add(std::string(name.text), items[i + 1]);
    } else {
      collector.add_other(key_text(pickle, items[i]), "an entry whose name is no str");
    }
  }
  collector.refuse_duplicates();
  if (index.key.empty()) return;
  constexpr std::size_t kMostListed = 100;
  constexpr std::size_t kLongestName = 1000;  // one long name can be the key of all
  const Ids top = pickle[finder.root()].items;
  for (std::size_t i = 0; i + 1 < top.size() && index.top_level.size() < kMostListed; i += 2) {
    const PickleValue name = pickle[top[i]];
    std::string text = name.kind == PickleKind::kString
                           ? std::string(name.text.substr(0, kLongestName))
                           : key_text(pickle, top[i]);
    index.top_level.push_back({std::move(text), finder.content(top[i + 1])});
  }
}

void add_module(const PickledFile& source, TensorIndex& index) {
  const Pickle& pickle = source.pickle;
  if (!pickle.is(pickle.root(), PickleKind::kObject)) {
    throw FormatError(formatted("{}: expected a module in the TorchScript archive, found {}",
                                source.file.path(), pickle.describe(pickle.root())));
  }
  TensorCollector collector(source, index);
  ModuleWalk(source, collector).add(pickle.root(), "", 0);
  collector.refuse_duplicates();
}

}  // namespace self_attention::io
