#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace self_attention::cpu {

/// Uninitialised numbers, aligned for every vector.
template <typename T>
class AlignedArray {
 public:
  explicit AlignedArray(std::size_t count = 0) { reserve(count); }

  /// Room for `count`; what was there is lost when more is needed.
  void reserve(std::size_t count) {
    if (count <= count_) return;
    data_.reset();
    count_ = 0;
    const std::size_t bytes = (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    void* memory = std::aligned_alloc(kAlignment, bytes);
    if (memory == nullptr) throw std::bad_alloc();
    data_.reset(static_cast<T*>(memory));
    count_ = count;
  }

  std::size_t bytes() const { return count_ * sizeof(T); }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  T& operator[](std::size_t index) { return data_.get()[index]; }
  const T& operator[](std::size_t index) const { return data_.get()[index]; }

 private:
  static constexpr std::size_t kAlignment = 128;
  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  std::unique_ptr<T[], Free> data_;
  std::size_t count_ = 0;
};

/// What one thread needs beside inputs and output. Grows as needed and may serve many tasks.
struct Workspace {
  /// Gives the memory back where it is more than a thread should keep for its next call.
  void trim() {
    constexpr std::size_t kKept = std::size_t{4} << 20;
    const std::size_t bytes =
        keys.bytes() + values.bytes() + rows.bytes() + queries.bytes() + scores.bytes() +
        outputs.bytes() + maxima.bytes() + sums.bytes() + mean.bytes() + value_columns.bytes() +
        key_rows.bytes() + grad_outputs.bytes() + grad_queries.bytes() + grad_keys.bytes() +
        grad_values.bytes() + deltas.bytes() + keep.bytes() + row_flags.bytes() + kept_keys.bytes();
    if (bytes > kKept) *this = Workspace();
  }

  AlignedArray<float> keys;               // packed panels
  AlignedArray<float> values;             // packed panels
  AlignedArray<float> rows;               // rows of 16 bits or of wide strides as floats
  AlignedArray<float> queries;            // a block of query rows
  AlignedArray<float> scores;             // a block of scores, then of weights
  AlignedArray<float> outputs;            // unnormalised results
  AlignedArray<float> maxima;             // of each row, so far
  AlignedArray<float> sums;               // of each row's weights, so far
  AlignedArray<float> mean;               // of the values
  AlignedArray<std::uint8_t> keep;        // a block of mask rows as bytes
  AlignedArray<std::uint8_t> row_flags;   // see RowFlag
  AlignedArray<float> value_columns;      // of the gradients: packed panels of valueᵀ
  AlignedArray<float> key_rows;           //   packed panels of keys
  AlignedArray<float> grad_outputs;       //   a block of rows
  AlignedArray<float> grad_queries;       //   sums for every query
  AlignedArray<float> grad_keys;          //   sums for a block of keys
  AlignedArray<float> grad_values;        //   sums for a block of keys
  AlignedArray<float> deltas;             //   Σ output · gradient of each row
  AlignedArray<std::uint32_t> kept_keys;  // those that a mask common to all queries keeps
};

}  // namespace self_attention::cpu
