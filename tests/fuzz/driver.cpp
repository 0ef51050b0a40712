// A main for the fuzz targets where there is no libFuzzer: replays a corpus, then feeds mutations
// of it. Takes libFuzzer's own arguments: [-runs=N] [-seed=N] FOLDER_OR_FILE...
#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes current;

void run(Bytes input) {
  current = std::move(input);
  LLVMFuzzerTestOneInput(current.data(), current.size());
}

[[maybe_unused]] void keep_current() {
  std::ofstream("crash-input", std::ios::binary)
      .write(reinterpret_cast<const char*>(current.data()),
             static_cast<std::streamsize>(current.size()));
  std::cerr << "the input is in ./crash-input\n";
}

class Mutator {
 public:
  Mutator(const std::vector<Bytes>& corpus, std::uint64_t seed) : corpus_(corpus), random_(seed) {}

  Bytes next() {
    Bytes input = pick();
    for (std::size_t count = 1 + below(6); count > 0; --count) change(input);
    return input;
  }

 private:
  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_() % limit; }
  const Bytes& pick() { return corpus_[below(corpus_.size())]; }

  void change(Bytes& input) {
    constexpr std::size_t kLongest = 1 << 16;
    const std::size_t place = below(input.size());
    const auto at = input.begin() + static_cast<std::ptrdiff_t>(place);
    const std::size_t length = std::min(1 + below(16), input.size() - place);
    const auto end = at + static_cast<std::ptrdiff_t>(length);
    if (input.empty() || (below(6) == 0 && input.size() < kLongest)) {
      const Bytes& other = pick();  // a piece of another input
      const std::size_t from = below(other.size());
      const std::size_t count = std::min(1 + below(64), other.size() - from);
      const auto first = other.begin() + static_cast<std::ptrdiff_t>(from);
      const Bytes piece(first, first + static_cast<std::ptrdiff_t>(count));
      input.insert(at, piece.begin(), piece.end());
      return;
    }
    switch (below(5)) {
      case 0:
        *at ^= static_cast<std::uint8_t>(1U << below(8));
        break;
      case 1:
        std::generate(at, end, [&] { return static_cast<std::uint8_t>(random_()); });
        break;
      case 2:
        input.erase(at, end);
        break;
      case 3: {  // the edges of number types
        constexpr std::array<std::uint8_t, 6> kEdges = {0, 1, 0x7f, 0x80, 0xfe, 0xff};
        std::fill(at, end, kEdges[below(kEdges.size())]);
        break;
      }
      default:
        std::swap(*at, input[below(input.size())]);
    }
  }

  const std::vector<Bytes>& corpus_;
  std::mt19937_64 random_;
};

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void add_path(const std::filesystem::path& path, std::vector<std::filesystem::path>& paths) {
  if (!std::filesystem::is_directory(path)) {
    paths.push_back(path);
    return;
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
}

std::uint64_t option(std::string_view argument, std::string_view name, std::uint64_t value) {
  if (!argument.starts_with(name)) return value;
  argument.remove_prefix(name.size());
  std::from_chars(argument.data(), argument.data() + argument.size(), value);
  return value;
}

}  // namespace

int main(int argc, char** argv) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_set_death_callback(keep_current);
#endif
  std::uint64_t runs = 0;
  std::uint64_t seed = 1;
  std::vector<std::filesystem::path> paths;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    runs = option(argument, "-runs=", runs);
    seed = option(argument, "-seed=", seed);
    if (!argument.starts_with('-')) add_path(argument, paths);
  }
  std::sort(paths.begin(), paths.end());  // one seed, one sequence
  std::vector<Bytes> corpus;
  corpus.reserve(paths.size());
  for (const auto& path : paths) corpus.push_back(read_file(path));
  if (corpus.empty()) {
    std::cerr << "expected a folder with inputs that are not empty\n";
    return 1;
  }
  for (const Bytes& input : corpus) run(input);
  Mutator mutator(corpus, seed);
  for (std::uint64_t i = 0; i < runs; ++i) run(mutator.next());
  std::cout << corpus.size() << " inputs of the corpus and " << runs << " mutations, seed " << seed
            << ": no failure\n";
}
