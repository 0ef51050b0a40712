#include "sample.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace language_model {

std::string sample_text(LanguageModel& model, const Text& text, const Options& options,
                        torch::Device device) {
  torch::NoGradGuard no_grad;
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(options.seed));
  std::vector<std::int64_t> written = options.prompt.empty()
                                          ? std::vector<std::int64_t>{text.numbers().front()}
                                          : text.encode(options.prompt);
  const bool training = model->is_training();
  model->eval();
  for (std::int64_t i = 0; i < options.sample; ++i) {
    const auto seen = std::min<std::int64_t>(options.context, std::ssize(written));
    const torch::Tensor last =
        torch::from_blob(written.data() + written.size() - seen, {1, seen}, torch::kInt64);
    const torch::Tensor scores = model(last.to(device)).select(1, -1).cpu().to(torch::kFloat64);
    const torch::Tensor shares = torch::softmax(scores / options.temperature, -1);
    written.push_back(torch::multinomial(shares, 1, false, generator).item<std::int64_t>());
  }
  model->train(training);
  return text.decode(written);
}

}  // namespace language_model
