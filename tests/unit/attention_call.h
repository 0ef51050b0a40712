#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <ostream>
#include <random>
#include <vector>

#include "backends/cpu/kernel/attention_problem.h"
#include "backends/cpu/kernel/float16.h"
#include "backends/cpu/kernel/schedule.h"
#include "support/guarded_memory.h"

namespace self_attention::cpu {

using testing::GuardedMemory;

struct Shape {
  std::size_t batch;
  std::size_t heads;
  std::size_t queries;
  std::size_t keys;
  std::size_t head_dim;
  std::size_t value_dim;
};

enum class MaskKind { kNone, kPadding, kRows, kFull };

struct Case {
  Shape shape;
  ElementKind kind;
  MaskKind mask;
  bool causal;
  double dropout_p = 0;
  /// Scores about that of a masked key, which then has a weight. Of float32, and 1 head_dim.
  bool low_scores = false;
};

inline std::ostream& operator<<(std::ostream& out, const Case& c) {
  const Shape& s = c.shape;
  return out << s.batch << "x" << s.heads << " queries " << s.queries << " keys " << s.keys
             << " dims " << s.head_dim << " " << s.value_dim << " kind " << static_cast<int>(c.kind)
             << " mask " << static_cast<int>(c.mask) << " causal " << c.causal << " dropout "
             << c.dropout_p << (c.low_scores ? " low scores" : "");
}

inline void write_element(float value, ElementKind kind, std::byte* to) {
  if (kind == ElementKind::kFloat32) {
    std::memcpy(to, &value, sizeof(value));
    return;
  }
  const std::uint16_t bits =
      kind == ElementKind::kFloat16
          ? float16_bits(value)
          : static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  std::memcpy(to, &bits, sizeof(bits));
}

inline double read_element(const std::byte* from, ElementKind kind) {
  if (kind == ElementKind::kFloat32) {
    float value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  if (kind == ElementKind::kBFloat16) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  const int exponent = (bits >> 10) & 31;
  const double fraction = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/// Inputs (N, L, H, d) in memory, seen as (N, H, L, d), each between guard pages.
class Call {
 public:
  Call(const Case& c, bool at_end)
      : case_(c),
        query_(bytes(c.shape.queries, c.shape.head_dim), at_end),
        key_(bytes(c.shape.keys, c.shape.head_dim), at_end),
        value_(bytes(c.shape.keys, c.shape.value_dim), at_end),
        output_(bytes(c.shape.queries, c.shape.value_dim), at_end),
        mask_(mask_elements(), at_end),
        grad_output_(bytes(c.shape.queries, c.shape.value_dim), at_end),
        grad_query_(bytes(c.shape.queries, c.shape.head_dim), at_end),
        grad_key_(bytes(c.shape.keys, c.shape.head_dim), at_end),
        grad_value_(bytes(c.shape.keys, c.shape.value_dim), at_end),
        row_maxima_(rows() * sizeof(float), at_end),
        row_sums_(rows() * sizeof(float), at_end) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto fill = [&](GuardedMemory& memory, std::size_t size) {
      for (std::size_t i = 0; i < size; i += element_bytes(case_.kind)) {
        write_element(normal(random), case_.kind, memory.data() + i);
      }
    };
    fill(query_, bytes(c.shape.queries, c.shape.head_dim));
    fill(key_, bytes(c.shape.keys, c.shape.head_dim));
    fill(value_, bytes(c.shape.keys, c.shape.value_dim));
    fill(grad_output_, bytes(c.shape.queries, c.shape.value_dim));
    if (c.low_scores) lower_scores(random);
    for (std::size_t i = 0; i < mask_elements(); ++i) {
      mask_.data()[i] = static_cast<std::byte>(random() % 4 != 0 ? 1 + random() % 255 : 0);
    }
    describe();
  }

  const AttentionProblem& problem() const { return problem_; }
  /// The same without what gradients need.
  AttentionProblem inference_problem() const {
    AttentionProblem problem = problem_;
    problem.row_maxima = problem.row_sums = nullptr;
    return problem;
  }

  /// Of all inputs; `problem` must have been run.
  GradientProblem gradient_problem() {
    GradientProblem all;
    all.call = problem_;
    all.output = {output_.data(), problem_.output_strides};
    all.grad_output = {grad_output_.data(), problem_.output_strides};
    all.grad_query = {grad_query_.data(), problem_.query.strides};
    all.grad_key = {grad_key_.data(), problem_.key.strides};
    all.grad_value = {grad_value_.data(), problem_.value.strides};
    return all;
  }

  std::vector<double> output() {
    std::vector<double> all;
    append(output_, bytes(case_.shape.queries, case_.shape.value_dim), all);
    return all;
  }

  /// Those of query, key and value.
  std::array<std::vector<double>, 3> gradients() {
    std::array<std::vector<double>, 3> all;
    append(grad_query_, bytes(case_.shape.queries, case_.shape.head_dim), all[0]);
    append(grad_key_, bytes(case_.shape.keys, case_.shape.head_dim), all[1]);
    append(grad_value_, bytes(case_.shape.keys, case_.shape.value_dim), all[2]);
    return all;
  }

  /// Their formula in float64.
  std::array<std::vector<double>, 3> expected_gradients() const {
    const Shape& s = case_.shape;
    std::array<std::vector<double>, 3> all;
    all[0].resize(s.batch * s.heads * s.queries * s.head_dim);
    all[1].resize(s.batch * s.heads * s.keys * s.head_dim);
    all[2].resize(s.batch * s.heads * s.keys * s.value_dim);
    const Gradients to = {all[0].data(), all[1].data(), all[2].data()};
    for (std::size_t n = 0; n < s.batch; ++n) {
      for (std::size_t h = 0; h < s.heads; ++h) {
        for (std::size_t i = 0; i < s.queries; ++i) add_row(n, h, i, to);
      }
    }
    return all;
  }

  /// The formula in float64, in the output's order.
  std::vector<double> expected() const {
    const Shape& s = case_.shape;
    std::vector<double> all;
    for (std::size_t n = 0; n < s.batch; ++n) {
      for (std::size_t i = 0; i < s.queries; ++i) {
        for (std::size_t h = 0; h < s.heads; ++h) append_row(n, h, i, all);
      }
    }
    return all;
  }

 private:
  struct Gradients {
    double* query;
    double* key;
    double* value;
  };

  /// Powers of two as queries, so that scores do not round.
  void lower_scores(std::mt19937& random) {
    for (std::size_t i = 0; i < bytes(case_.shape.queries, 1); i += sizeof(float)) {
      write_element(0x1p33F, case_.kind, query_.data() + i);
    }
    for (std::size_t i = 0; i < bytes(case_.shape.keys, 1); i += sizeof(float)) {
      const double steps = static_cast<double>(random() % 41) - 20;
      write_element(static_cast<float>(-1e20 * (1 + steps * 0x1p-20) * 0x1p-33), case_.kind,
                    key_.data() + i);
    }
  }

  void append(const GuardedMemory& memory, std::size_t size, std::vector<double>& all) const {
    for (std::size_t i = 0; i < size; i += element_bytes(case_.kind)) {
      all.push_back(read_element(memory.data() + i, case_.kind));
    }
  }

  std::size_t rows() const { return case_.shape.batch * case_.shape.heads * case_.shape.queries; }

  std::size_t bytes(std::size_t rows, std::size_t columns) const {
    return case_.shape.batch * case_.shape.heads * rows * columns * element_bytes(case_.kind);
  }

  std::size_t mask_elements() const {
    const Shape& s = case_.shape;
    switch (case_.mask) {
      case MaskKind::kNone:
        return 0;
      case MaskKind::kPadding:
        return s.batch * s.keys;
      case MaskKind::kRows:
        return s.heads * s.queries;
      case MaskKind::kFull:
        return s.queries * s.keys;
    }
    return 0;
  }

  void describe() {
    const Shape& s = case_.shape;
    const auto i64 = [](std::size_t x) { return static_cast<std::int64_t>(x); };
    const auto strides = [&](std::size_t rows, std::size_t columns) {
      return Strides{i64(rows * s.heads * columns), i64(columns), i64(s.heads * columns), 1};
    };
    problem_.query = {query_.data(), strides(s.queries, s.head_dim)};
    problem_.key = {key_.data(), strides(s.keys, s.head_dim)};
    problem_.value = {value_.data(), strides(s.keys, s.value_dim)};
    problem_.output = output_.data();
    problem_.output_strides = strides(s.queries, s.value_dim);
    if (case_.mask != MaskKind::kNone) problem_.mask.data = mask_.data();
    if (case_.mask == MaskKind::kPadding) problem_.mask.strides = {i64(s.keys), 0, 0, 1};
    if (case_.mask == MaskKind::kRows) problem_.mask.strides = {0, i64(s.queries), 1, 0};
    if (case_.mask == MaskKind::kFull) problem_.mask.strides = {0, 0, i64(s.keys), 1};
    problem_.kind = case_.kind;
    problem_.batch = s.batch;
    problem_.heads = s.heads;
    problem_.query_length = s.queries;
    problem_.key_length = s.keys;
    problem_.head_dim = s.head_dim;
    problem_.value_dim = s.value_dim;
    problem_.scale = case_.low_scores ? 1e-15F : 1 / std::sqrt(static_cast<float>(s.head_dim));
    problem_.causal = case_.causal;
    problem_.dropout = make_dropout(case_.dropout_p, 0x123456789ABCDEF0U);
    problem_.row_maxima = reinterpret_cast<float*>(row_maxima_.data());
    problem_.row_sums = reinterpret_cast<float*>(row_sums_.data());
  }

  static std::size_t at(const Strides& strides, std::size_t n, std::size_t h, std::size_t row,
                        std::size_t column) {
    const auto u = [](std::int64_t x) { return static_cast<std::size_t>(x); };
    return n * u(strides[0]) + h * u(strides[1]) + row * u(strides[2]) + column * u(strides[3]);
  }

  double element(const ConstView& view, std::size_t n, std::size_t h, std::size_t row,
                 std::size_t column) const {
    const auto* data = static_cast<const std::byte*>(view.data);
    return read_element(data + at(view.strides, n, h, row, column) * element_bytes(case_.kind),
                        case_.kind);
  }

  bool keeps(std::size_t n, std::size_t h, std::size_t i, std::size_t j) const {
    if (case_.causal && j > i) return false;
    if (problem_.mask.data == nullptr) return true;
    const auto* data = static_cast<const std::byte*>(problem_.mask.data);
    return data[at(problem_.mask.strides, n, h, i, j)] != std::byte{0};
  }

  /// The row's weights of all values.
  std::vector<double> weights_of(std::size_t n, std::size_t h, std::size_t i) const {
    const Shape& s = case_.shape;
    std::vector<double> weights(s.keys);
    for (std::size_t j = 0; j < s.keys; ++j) {
      double score = 0;
      for (std::size_t k = 0; k < s.head_dim; ++k) {
        score += element(problem_.query, n, h, i, k) * element(problem_.key, n, h, j, k);
      }
      weights[j] = (keeps(n, h, i, j) ? score : -1e20F) * static_cast<double>(problem_.scale);
    }
    const double max = weights.empty() ? 0 : *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - max);
    for (double& weight : weights) weight /= sum;
    return weights;
  }

  double factor(std::size_t n, std::size_t h, std::size_t i, std::size_t j) const {
    const Shape& s = case_.shape;
    const std::size_t row = (n * s.heads + h) * s.queries + i;
    return dropout_factor(problem_.dropout, row_seeds(problem_.dropout.seed, row),
                          static_cast<std::uint32_t>(j));
  }

  void append_row(std::size_t n, std::size_t h, std::size_t i, std::vector<double>& all) const {
    const std::vector<double> weights = weights_of(n, h, i);
    for (std::size_t column = 0; column < case_.shape.value_dim; ++column) {
      double result = 0;
      for (std::size_t j = 0; j < weights.size(); ++j) {
        result += factor(n, h, i, j) * weights[j] * element(problem_.value, n, h, j, column);
      }
      all.push_back(result);
    }
  }

  /// What one query adds to the gradients.
  void add_row(std::size_t n, std::size_t h, std::size_t i, const Gradients& to) const {
    const Shape& s = case_.shape;
    const ConstView output_gradient = {grad_output_.data(), problem_.output_strides};
    const std::vector<double> weights = weights_of(n, h, i);
    std::vector<double> gradients(s.keys);
    double delta = 0;
    for (std::size_t j = 0; j < s.keys; ++j) {
      for (std::size_t c = 0; c < s.value_dim; ++c) {
        const double gradient = factor(n, h, i, j) * element(output_gradient, n, h, i, c);
        gradients[j] += gradient * element(problem_.value, n, h, j, c);
        to.value[at(problem_.value.strides, n, h, j, c)] += weights[j] * gradient;
      }
      delta += weights[j] * gradients[j];
    }
    for (std::size_t j = 0; j < s.keys; ++j) {
      if (!keeps(n, h, i, j)) continue;
      const double score =
          weights[j] * (gradients[j] - delta) * static_cast<double>(problem_.scale);
      for (std::size_t c = 0; c < s.head_dim; ++c) {
        to.query[at(problem_.query.strides, n, h, i, c)] +=
            score * element(problem_.key, n, h, j, c);
        to.key[at(problem_.key.strides, n, h, j, c)] += score * element(problem_.query, n, h, i, c);
      }
    }
  }

  Case case_;
  GuardedMemory query_, key_, value_, output_, mask_;
  GuardedMemory grad_output_, grad_query_, grad_key_, grad_value_, row_maxima_, row_sums_;
  AttentionProblem problem_;
};

/// All tasks, one after the other.
inline void run(TaskList& list, Workspace& space) {
  for (std::size_t round = 0; round < TaskList::kRounds; ++round) {
    for (std::size_t task = 0; task < list.tasks(round); ++task) list.run(round, task, space);
  }
}

}  // namespace self_attention::cpu
