#include "backends/cpu/kernel/kernel.h"

#include <vector>

// One target for each number of lanes; the last runs anywhere.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernel/kernel.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backends/cpu/kernel/attention_gradients-inl.h"
#include "backends/cpu/kernel/block_attention-inl.h"
#include "backends/cpu/kernel/row_attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace self_attention::cpu::HWY_NAMESPACE {
namespace {

void RunBlock(const AttentionProblem& problem, Head head, Range queries, Workspace& space) {
  BlockTask(problem, head, space).Run(queries);
}

void RunRow(const AttentionProblem& problem, const HeadRange& heads, std::size_t query, Range keys,
            const RowResults& results, Workspace& space) {
  switch (problem.kind) {
    case ElementKind::kBFloat16:
      return RowTask<hwy::bfloat16_t>(problem, heads, space).Run(query, keys, results);
    case ElementKind::kFloat16:
      return RowTask<hwy::float16_t>(problem, heads, space).Run(query, keys, results);
    case ElementKind::kFloat32:
      return RowTask<float>(problem, heads, space).Run(query, keys, results);
  }
}

void MergeRows(const AttentionProblem& problem, Head head, std::size_t query,
               std::span<const RowResult> rows, float* sums, Workspace& space) {
  HeadTask(problem, head, space).Merge(query, rows, sums);
}

void RunGradients(const GradientProblem& problem, Head head, const GradientPiece& piece,
                  Workspace& space) {
  GradientTask(problem, head, space).Run(piece);
}

void MergeGradients(const GradientProblem& problem, Head head, const GradientPiece& pieces,
                    std::size_t step, Workspace& space) {
  GradientTask(problem, head, space).MergeQueries(pieces, step);
}

}  // namespace

const Kernel* GetKernel() {
#if HWY_TARGET == HWY_AVX3
  constexpr std::string_view kName = "avx512";
#elif HWY_TARGET == HWY_AVX2
  constexpr std::string_view kName = "avx2";
#elif HWY_TARGET == HWY_SSE4
  constexpr std::string_view kName = "sse4";
#else
  constexpr std::string_view kName = "scalar";
#endif
  static constexpr Kernel kKernel = {kName,     RunBlock,     RunRow,
                                     MergeRows, RunGradients, MergeGradients};
  return &kKernel;
}

}  // namespace self_attention::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace self_attention::cpu {
namespace {

#if HWY_ARCH_X86
// What Highway's targets of these names are compiled for, but for F16C, which compilers do not all
// know here and every processor with AVX2 has.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("sse4.2");
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd");
}
#endif

std::vector<const Kernel*> FindKernels() {
  std::vector<const Kernel*> found;
  // Beside the static target, which every machine has that the compiler may assume.
#if (HWY_TARGETS & ~HWY_STATIC_TARGET) & HWY_AVX3
  if (has_avx2() && has_avx512()) found.push_back(N_AVX3::GetKernel());
#endif
#if (HWY_TARGETS & ~HWY_STATIC_TARGET) & HWY_AVX2
  if (has_avx2()) found.push_back(N_AVX2::GetKernel());
#endif
#if (HWY_TARGETS & ~HWY_STATIC_TARGET) & HWY_SSE4
  if (__builtin_cpu_supports("sse4.2")) found.push_back(N_SSE4::GetKernel());
#endif
  found.push_back(HWY_NAMESPACE::GetKernel());
  return found;
}

}  // namespace

std::span<const Kernel* const> kernels() {
  static const std::vector<const Kernel*> kFound = FindKernels();
  return kFound;
}

}  // namespace self_attention::cpu
#endif
