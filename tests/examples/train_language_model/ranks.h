#pragma once

#include <torch/types.h>

#include <memory>
#include <vector>

#include "launch.h"

namespace language_model {

/// The processes that train together. This class is that of a single process, where all is done
/// already. Methods with another process fail with c10::Error where one of them is gone or takes
/// longer than the timeout.
class Ranks {
 public:
  virtual ~Ranks() = default;

  virtual int rank() const { return 0; }
  virtual int size() const { return 1; }

  /// Makes the tensor that of rank 0.
  virtual void broadcast(const torch::Tensor&) {}
  /// Adds up the tensors of all ranks, in place.
  virtual void sum(const torch::Tensor&) {}
  /// From now on a backward pass averages these gradients over the ranks, while it runs.
  virtual void average_gradients(const std::vector<torch::Tensor>&) {}
  /// To be called between a forward and its backward pass.
  virtual void before_backward() {}
};

/// Joins the others. Throws std::runtime_error where this program cannot.
std::unique_ptr<Ranks> join_ranks(const Launch& launch, int timeout_seconds, torch::Device device);

}  // namespace language_model
