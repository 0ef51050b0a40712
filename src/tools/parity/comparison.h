#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace self_attention::parity {

/// How one tensor compares with what is expected of it. Elements are compared as float64, which
/// holds every element of the smaller floating types exactly, the sign of zero included.
struct Comparison {
  bool passed = true;
  double error = 0;         ///< largest |actual - expected|; infinite where only one is a number
  std::int64_t index = -1;  ///< row-major place of that error; -1 where nothing differs
  double actual = 0;        ///< both elements at that place
  double expected = 0;
  double allowed = 0;  ///< largest error that passes; 0 where bits are demanded

  /// error / allowed, infinite where bits differ: orders tensors from good to bad.
  double severity() const;
};

/// max(1, largest finite |element|): what tolerances are multiplied with. Attention mixes the
/// elements of a row into each other, so the large ones set the rounding error of the small.
double magnitude(std::span<const double> elements);

/// Largest |a - b| over the places where both are finite.
double largest_finite_error(std::span<const double> a, std::span<const double> b);

/// `actual` with NaN wherever `expected` has it: for results that owe nothing there.
std::vector<double> with_nan_of(std::span<const double> actual, std::span<const double> expected);

/// Every element the same bits; any NaN equals any NaN, but 0 does not equal -0.
Comparison compare_bits(std::span<const double> actual, std::span<const double> expected);

/// |actual - expected| <= allowed everywhere. NaN must meet NaN and an infinity the same infinity,
/// whatever is allowed.
Comparison compare_within(std::span<const double> actual, std::span<const double> expected,
                          double allowed);

}  // namespace self_attention::parity
