#include "tools/parity/comparison.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>

namespace self_attention::parity {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

bool same_value(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

/// |a - b|, infinite where a number meets something else.
double distance(double a, double b) {
  return std::isfinite(a) && std::isfinite(b) ? std::abs(a - b) : kInfinity;
}

/// The worst of the places that `same` tells apart, the first of equals.
template <typename Same>
Comparison worst_difference(std::span<const double> actual, std::span<const double> expected,
                            Same same) {
  if (actual.size() != expected.size()) throw std::invalid_argument("comparison: sizes differ");
  Comparison result;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (same(actual[i], expected[i])) continue;
    const double error = distance(actual[i], expected[i]);
    if (result.index >= 0 && error <= result.error) continue;
    result.error = error;
    result.index = static_cast<std::int64_t>(i);
    result.actual = actual[i];
    result.expected = expected[i];
  }
  return result;
}

}  // namespace

double Comparison::severity() const {
  if (allowed > 0) return error / allowed;
  return passed ? 0 : kInfinity;
}

double magnitude(std::span<const double> elements) {
  double largest = 1;
  for (const double element : elements) {
    if (std::isfinite(element)) largest = std::max(largest, std::abs(element));
  }
  return largest;
}

double largest_finite_error(std::span<const double> a, std::span<const double> b) {
  double largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double error = distance(a[i], b[i]);
    if (std::isfinite(error)) largest = std::max(largest, error);
  }
  return largest;
}

std::vector<double> with_nan_of(std::span<const double> actual, std::span<const double> expected) {
  std::vector<double> result(actual.begin(), actual.end());
  for (std::size_t i = 0; i < std::min(result.size(), expected.size()); ++i) {
    if (std::isnan(expected[i])) result[i] = expected[i];
  }
  return result;
}

Comparison compare_bits(std::span<const double> actual, std::span<const double> expected) {
  Comparison result = worst_difference(actual, expected, same_bits);
  result.passed = result.index < 0;
  return result;
}

Comparison compare_within(std::span<const double> actual, std::span<const double> expected,
                          double allowed) {
  Comparison result = worst_difference(actual, expected, same_value);
  result.allowed = allowed;
  result.passed = result.error <= allowed;
  return result;
}

}  // namespace self_attention::parity
