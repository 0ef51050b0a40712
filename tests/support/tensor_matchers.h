#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <exception>
#include <string>
#include <vector>

#include "tools/parity/comparison.h"

namespace self_attention::testing {

/// The elements in row-major order, as the comparisons of `self-attention parity` take them.
inline std::vector<double> elements(const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.detach().to(torch::kCPU, torch::kFloat64).contiguous();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}

inline ::testing::AssertionResult to_assertion(const torch::Tensor& actual,
                                               const torch::Tensor& expected,
                                               const parity::Comparison& comparison) {
  if (actual.sizes() != expected.sizes()) {
    return ::testing::AssertionFailure() << actual.sizes() << " instead of " << expected.sizes();
  }
  if (comparison.passed) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "largest error " << comparison.error << " at flat index " << comparison.index << ": "
         << comparison.actual << " instead of " << comparison.expected;
}

/// Same shape, dtype and bytes, any NaN being equal to any NaN.
inline ::testing::AssertionResult bit_equal(const torch::Tensor& actual,
                                            const torch::Tensor& expected) {
  if (actual.scalar_type() != expected.scalar_type()) {
    return ::testing::AssertionFailure()
           << actual.scalar_type() << " instead of " << expected.scalar_type();
  }
  return to_assertion(actual, expected, parity::compare_bits(elements(actual), elements(expected)));
}

/// Same shape, and no element further off than `tolerance`; NaN fits NaN alone.
inline ::testing::AssertionResult near(const torch::Tensor& actual, const torch::Tensor& expected,
                                       double tolerance) {
  return to_assertion(actual, expected,
                      parity::compare_within(elements(actual), elements(expected), tolerance));
}

/// Runs `call` and expects an error of exactly kind E whose message holds every one of `words`.
template <typename E, typename Call>
::testing::AssertionResult throws(Call call, const std::vector<std::string>& words) {
  try {
    call();
  } catch (const E& error) {
    const std::string text = error.what_without_backtrace();
    for (const std::string& word : words) {
      if (text.find(word) == std::string::npos) {
        return ::testing::AssertionFailure() << "\"" << word << "\" is not in: " << text;
      }
    }
    return ::testing::AssertionSuccess();
  } catch (const std::exception& error) {
    return ::testing::AssertionFailure() << "another kind of error: " << error.what();
  }
  return ::testing::AssertionFailure() << "nothing was thrown";
}

}  // namespace self_attention::testing
