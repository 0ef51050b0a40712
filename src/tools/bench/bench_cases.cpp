#include "tools/bench/bench_cases.h"

namespace self_attention::bench {
namespace {

BenchCase training(const char* name, std::int64_t batch, std::int64_t length, bool causal) {
  return {name,           batch, 8, length, length, 64, Dtype::kFloat32, causal, /*padding=*/false,
          /*trains=*/true};
}

}  // namespace

const std::vector<BenchCase>& bench_cases() {
  static const std::vector<BenchCase> cases = {
      {"d64-L512", 1, 8, 512, 512, 64},
      {"d64-L2048", 1, 8, 2048, 2048, 64},
      {"d128-L512", 1, 8, 512, 512, 128},
      {"d128-L2048", 1, 8, 2048, 2048, 128},
      {"d32-L512", 1, 16, 512, 512, 32},
      {"d32-L256", 1, 16, 256, 256, 32},
      {"d16-L256", 1, 16, 256, 256, 16},
      {"L97", 8, 8, 97, 97, 64},
      {"L257", 2, 8, 257, 257, 64},
      {"L513", 1, 8, 513, 513, 64},
      {"causal-L512", 1, 8, 512, 512, 64, Dtype::kFloat32, /*causal=*/true},
      {"causal-L2048", 1, 8, 2048, 2048, 64, Dtype::kFloat32, /*causal=*/true},
      {"L128", 8, 8, 128, 128, 64},
      {"L64", 8, 8, 64, 64, 64},
      {"L32", 8, 8, 32, 32, 64},
      {"L9", 32, 8, 9, 9, 32},
      {"padding-L512", 2, 8, 512, 512, 64, Dtype::kFloat32, /*causal=*/false, /*padding=*/true},
      {"float16-L512", 1, 8, 512, 512, 64, Dtype::kFloat16},
      {"bfloat16-L512", 1, 8, 512, 512, 64, Dtype::kBFloat16},
      {"one-query-K512", 8, 8, 1, 512, 64},
      {"one-query-K4096", 1, 8, 1, 4096, 64},
      {"one-query-K8192", 4, 8, 1, 8192, 64},
      training("train-L128", 8, 128, /*causal=*/false),
      training("train-L512", 1, 512, /*causal=*/false),
      training("train-L2048", 1, 2048, /*causal=*/false),
      training("train-causal-L512", 1, 512, /*causal=*/true),
      training("train-causal-L2048", 1, 2048, /*causal=*/true),
  };
  return cases;
}

std::int64_t kept_keys(const BenchCase& bench_case) {
  return bench_case.padding ? bench_case.key_length * 3 / 4 : bench_case.key_length;
}

double needed_flops(const BenchCase& bench_case) {
  const std::int64_t queries = bench_case.query_length;
  const std::int64_t pairs =
      bench_case.causal ? queries * (queries + 1) / 2 : queries * kept_keys(bench_case);
  const double products = bench_case.trains ? 7 : 2;
  return 2 * products *
         static_cast<double>(bench_case.batch * bench_case.heads * bench_case.head_dim) *
         static_cast<double>(pairs);
}

std::int64_t read_bytes(const BenchCase& bench_case) {
  const std::int64_t element = bench_case.dtype == Dtype::kFloat32 ? 4 : 2;
  return 2 * bench_case.batch * bench_case.heads * bench_case.key_length * bench_case.head_dim *
         element;
}

}  // namespace self_attention::bench
