#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#ifdef LANGUAGE_MODEL_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <chrono>
#include <cstdlib>
#include <string>

#include "ranks.h"

namespace language_model {
namespace {

using c10d::ProcessGroup;
using c10d::ProcessGroupGloo;
using Milliseconds = std::chrono::milliseconds;

c10::intrusive_ptr<c10d::Store> open_store(const Launch& launch, Milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = launch.port;
  options.isServer = launch.rank == 0 && !launch.agent_store;
  options.numWorkers = static_cast<std::size_t>(launch.size);
  options.timeout = timeout;
  options.waitWorkers = !launch.agent_store;
  auto store = c10::make_intrusive<c10d::TCPStore>(launch.address, options);
  // A launcher's store outlives its workers: what dead ones left in it must not be found.
  return c10::make_intrusive<c10d::PrefixStore>("language_model/" + std::to_string(launch.attempt),
                                                std::move(store));
}

/// Gloo's own class crosses no border of versions here: LibTorch makes the device, and this program
/// holds it by a std::shared_ptr. So the headers need not be those that LibTorch was built with.
c10::intrusive_ptr<c10d::Backend> open_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                            const Launch& launch, Milliseconds timeout) {
  auto options = ProcessGroupGloo::Options::create(timeout);
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr) {
    options->devices.push_back(ProcessGroupGloo::createDeviceForInterface(interface));
  } else if (launch.address == "localhost" || launch.address == "127.0.0.1") {
    options->devices.push_back(ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  } else {
    options->devices.push_back(ProcessGroupGloo::createDefaultDevice());
  }
  return c10::make_intrusive<ProcessGroupGloo>(store, launch.rank, launch.size, std::move(options));
}

/// Gloo for what is on the CPU, and on CUDA too where the program was built without NCCL.
c10::intrusive_ptr<ProcessGroup> open_group(const Launch& launch, Milliseconds timeout,
                                            torch::Device device) {
  const auto store = open_store(launch, timeout);
  auto group = c10::make_intrusive<ProcessGroup>(store, launch.rank, launch.size);
  const auto gloo = open_gloo(store, launch, timeout);
  group->setBackend(c10::kCPU, ProcessGroup::BackendType::GLOO, gloo);
  group->setDefaultBackend(ProcessGroup::BackendType::GLOO);
  if (!device.is_cuda()) return group;
#ifdef LANGUAGE_MODEL_NCCL
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  group->setBackend(c10::kCUDA, ProcessGroup::BackendType::NCCL,
                    c10::make_intrusive<c10d::ProcessGroupNCCL>(
                        c10::make_intrusive<c10d::PrefixStore>("nccl", store), launch.rank,
                        launch.size, std::move(options)));
  group->setDefaultBackend(ProcessGroup::BackendType::NCCL);
#else
  group->setBackend(c10::kCUDA, ProcessGroup::BackendType::GLOO, gloo);
#endif
  return group;
}

class ProcessRanks : public Ranks {
 public:
  ProcessRanks(const Launch& launch, Milliseconds timeout, torch::Device device)
      : rank_(launch.rank), size_(launch.size), group_(open_group(launch, timeout, device)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void broadcast(const torch::Tensor& tensor) override {
    std::vector<torch::Tensor> tensors = {tensor};
    group_->broadcast(tensors)->wait();
  }

  void sum(const torch::Tensor& tensor) override {
    std::vector<torch::Tensor> tensors = {tensor};
    group_->allreduce(tensors)->wait();
  }

  void average_gradients(const std::vector<torch::Tensor>& parameters) override {
    // Small buckets, the last layers' first, so that their sums travel while the others are
    // computed.
    constexpr std::size_t kBucketBytes = 1 << 20;
    std::vector<std::size_t> limits = {kBucketBytes};
    const std::vector<torch::Tensor> reversed(parameters.rbegin(), parameters.rend());
    auto [buckets, unused] = c10d::compute_bucket_assignment_by_size(reversed, limits);
    reducer_ = std::make_unique<c10d::Reducer>(
        reversed, std::move(buckets), group_, std::vector<bool>(reversed.size(), false),
        /*bucket_bytes_cap=*/kBucketBytes, /*find_unused_parameters=*/false,
        /*gradient_as_bucket_view=*/true, std::unordered_map<std::size_t, std::string>(),
        /*first_bucket_bytes_cap=*/kBucketBytes, /*skip_all_reduce_unused_params=*/false,
        /*use_python_reducer=*/false, std::vector<std::int64_t>());
  }

  void before_backward() override {
    reducer_->rebuild_buckets();
    reducer_->prepare_for_backward({});
  }

 private:
  int rank_;
  int size_;
  c10::intrusive_ptr<ProcessGroup> group_;
  std::unique_ptr<c10d::Reducer> reducer_;
};

}  // namespace

#ifdef LANGUAGE_MODEL_NCCL
const char* const kProcesses = "any number, by gloo, on CUDA by NCCL";
#else
const char* const kProcesses = "any number, by gloo";
#endif

std::unique_ptr<Ranks> join_ranks(const Launch& launch, int timeout_seconds, torch::Device device) {
  if (launch.size == 1) return std::make_unique<Ranks>();
  return std::make_unique<ProcessRanks>(launch, std::chrono::seconds(timeout_seconds), device);
}

}  // namespace language_model
