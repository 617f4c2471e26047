#include "kernels/device/cublas.hpp"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <limits>
#include <map>

#include "kernels/device/device.hpp"
#include "kernels/device/error.cuh"

namespace nanorun::kernels::cuda {
namespace {

constexpr std::size_t workspace_bytes = std::size_t{32} << 20;
constexpr int max_candidates = 8;
constexpr int timed_rounds = 3, timed_runs = 2;
/// Candidates that take longer than this multiple of the shortest time so far are not timed again.
constexpr float close_time = 1.1f;

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(std::string(call) + ": " + cublasLtGetStatusString(status));
  }
}

/// A matrix as cuBLASLt sees it: the row-major matrix [rows, cols] is the column-major matrix [cols, rows].
struct Operand {
  const void* data;
  cudaDataType_t type;
  int rows, cols, ld;
  bool transposed = false;
};

/// Largest power of two up to 256 that divides the address.
std::uint32_t alignment(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | 256u;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

struct Gemm {
  GemmOptions options;
  Operand a, b, c;
  void* d;

  bool in_place() const { return c.data == d; }
  /// Whether a run changes what a second one would read.
  bool adds_in_place() const { return in_place() && options.beta != 0; }
  /// Bytes of one row of all results.
  std::size_t row_bytes() const {
    return std::size_t{1} * c.ld * options.count * (c.type == CUDA_R_32F ? sizeof(float) : sizeof(bf16));
  }
};

/// The first rows of a GEMM, as many as gemm_timing_bytes hold of its result: tens of thousands where they are not all,
/// enough to stand for it.
Gemm sample_of(const Gemm& p) {
  constexpr int unit = 256;  // rows of the tallest tiles
  const std::size_t fitting = std::max<std::size_t>(1, gemm_timing_bytes / p.row_bytes() / unit) * unit;
  Gemm sample = p;
  sample.c.rows = static_cast<int>(std::min<std::size_t>(p.c.rows, fitting));
  (p.a.transposed ? sample.a.cols : sample.a.rows) = sample.c.rows;
  return sample;
}

/// What decides which algorithm is fastest.
using Key = std::array<std::int64_t, 24>;

Key key_of(const Gemm& p) {
  Key key;
  std::size_t at = 0;
  for (const Operand& m : {p.a, p.b, p.c}) {
    for (const std::int64_t value : {std::int64_t{m.type}, std::int64_t{m.rows}, std::int64_t{m.cols},
                                     std::int64_t{m.ld}, std::int64_t{m.transposed}, std::int64_t{alignment(m.data)}}) {
      key[at++] = value;
    }
  }
  key[at++] = alignment(p.d);
  key[at++] = p.options.beta != 0;
  key[at++] = p.options.count;
  key[at++] = p.options.fast_accumulation;
  key[at++] = p.options.factor != nullptr;
  key[at++] = p.in_place();
  assert(at == key.size());
  return key;
}

/// Descriptors of a GEMM, and the algorithm once it is chosen.
struct Plan {
  cublasLtMatmulDescOpaque_t matmul;
  cublasLtMatrixLayoutOpaque_t a, b, d;
  cublasLtMatmulAlgo_t algorithm;
};

struct Candidates {
  cublasLtMatmulHeuristicResult_t results[max_candidates] = {};
  int count = 0;
};

template <class T>
void set(cublasLtMatmulDescOpaque_t& matmul, cublasLtMatmulDescAttributes_t attribute, T value) {
  check(cublasLtMatmulDescSetAttribute(&matmul, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
}

void describe(cublasLtMatrixLayoutOpaque_t& layout, const Operand& m, std::int32_t count) {
  check(cublasLtMatrixLayoutInit(&layout, m.type, m.cols, m.rows, m.ld), "cublasLtMatrixLayoutInit");
  const std::int64_t stride = static_cast<std::int64_t>(m.rows) * m.ld;
  check(cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
        "batch count");
  check(cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
        "batch stride");
}

/// The row-major d = a b is the column-major dᵀ = bᵀ aᵀ: cuBLASLt's first operand is b.
Plan describe(const Gemm& p) {
  Plan plan;
  check(cublasLtMatmulDescInit(&plan.matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescInit");
  const auto op = [](const Operand& m) { return std::int32_t{m.transposed ? CUBLAS_OP_T : CUBLAS_OP_N}; };
  set(plan.matmul, CUBLASLT_MATMUL_DESC_TRANSA, op(p.b));
  set(plan.matmul, CUBLASLT_MATMUL_DESC_TRANSB, op(p.a));
  set(plan.matmul, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{p.options.fast_accumulation});
  if (p.options.factor) set(plan.matmul, CUBLASLT_MATMUL_DESC_POINTER_MODE, std::int32_t{CUBLASLT_POINTER_MODE_DEVICE});
  describe(plan.a, p.a, p.options.count);
  describe(plan.b, p.b, p.options.count);
  describe(plan.d, p.c, p.options.count);
  return plan;
}

struct TemporaryMemory {
  explicit TemporaryMemory(std::size_t bytes) {
    if (bytes > 0) check_memory(cudaMalloc(&data, bytes), "cudaMalloc");
  }
  ~TemporaryMemory() { cudaFree(data); }
  TemporaryMemory(const TemporaryMemory&) = delete;
  void* data = nullptr;
};

/// A pair of events around work on a stream.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    for (cudaEvent_t& event : events_) cuda::check(cudaEventCreate(&event), "cudaEventCreate");
  }
  ~Stopwatch() {
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  Stopwatch(const Stopwatch&) = delete;

  void start() { cuda::check(cudaEventRecord(events_[0], stream_), "cudaEventRecord"); }
  /// Waits for the work; milliseconds since start().
  float stop() {
    cuda::check(cudaEventRecord(events_[1], stream_), "cudaEventRecord");
    cuda::check(cudaEventSynchronize(events_[1]), "cudaEventSynchronize");
    float milliseconds = 0;
    cuda::check(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]), "cudaEventElapsedTime");
    return milliseconds;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t events_[2] = {};
};

class Blas {
 public:
  explicit Blas(Gemms gemms) : reproducible_(gemms == Gemms::reproducible) {
    check(cublasLtCreate(&handle_), "cublasLtCreate");
    const cudaError_t status = cudaMalloc(&workspace_, workspace_bytes + sizeof betas);
    if (status != cudaSuccess) cublasLtDestroy(handle_);
    check_memory(status, "cudaMalloc");
    cuda::check(cudaMemcpy(device_beta(0), betas, sizeof betas, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  ~Blas() {
    cudaFree(workspace_);
    cublasLtDestroy(handle_);
  }
  Blas(const Blas&) = delete;

  void run(cudaStream_t stream, const Gemm& gemm) {
    const Key key = key_of(gemm);
    auto found = plans_.find(key);
    if (found == plans_.end()) {
      found = plans_.emplace(key, reproducible_ ? first_of_heuristic(gemm) : fastest(stream, gemm)).first;
    }
    check(launch(stream, gemm, found->second, gemm.c.data, gemm.d), "cublasLtMatmul");
  }

 private:
  /// Device memory with the values that beta may have beside a factor.
  float* device_beta(int value) const {
    return reinterpret_cast<float*>(static_cast<std::byte*>(workspace_) + workspace_bytes) + value;
  }

  cublasStatus_t launch(cudaStream_t stream, const Gemm& p, Plan& plan, const void* c, void* d) const {
    const GemmOptions& o = p.options;
    const float* const alpha = o.factor ? o.factor : &o.alpha;
    const float* const beta = o.factor ? device_beta(o.beta != 0) : &o.beta;
    return cublasLtMatmul(handle_, &plan.matmul, alpha, p.b.data, &plan.b, p.a.data, &plan.a, beta, c, &plan.d, d,
                          &plan.d, &plan.algorithm, workspace_, workspace_bytes, stream);
  }

  Candidates ask(const Gemm& p, Plan& plan) const {
    cublasLtMatmulPreferenceOpaque_t preference;
    check(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value), "preference");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    // Split-K: partial sums stay in fp32 until they are complete.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p.b.data));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.a.data));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.c.data));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p.d));
    Candidates found;
    check(cublasLtMatmulAlgoGetHeuristic(handle_, &plan.matmul, &plan.b, &plan.a, &plan.d, &plan.d, &preference,
                                         max_candidates, found.results, &found.count),
          "cublasLtMatmulAlgoGetHeuristic");
    return found;
  }

  /// The first candidate that the library supports on this device.
  Plan first_of_heuristic(const Gemm& p) const {
    Plan plan = describe(p);
    const Candidates found = ask(p, plan);
    for (int k = 0; k < found.count; ++k) {
      cublasLtMatmulHeuristicResult_t checked = {};
      if (found.results[k].state != CUBLAS_STATUS_SUCCESS) continue;
      plan.algorithm = found.results[k].algo;
      if (cublasLtMatmulAlgoCheck(handle_, &plan.matmul, &plan.b, &plan.a, &plan.d, &plan.d, &plan.algorithm,
                                  &checked) == CUBLAS_STATUS_SUCCESS &&
          checked.workspaceSize <= workspace_bytes) {
        return plan;
      }
    }
    throw std::runtime_error(no_algorithm);
  }

  /// Times the candidates, the fast ones in several rounds, as the device's clocks change meanwhile. The shortest time
  /// counts. A GEMM that adds in place is not repeated on its result: a sample writes to scratch memory.
  Plan fastest(cudaStream_t stream, const Gemm& p) const {
    constexpr float never = std::numeric_limits<float>::infinity();
    Plan plan = describe(p);
    const Gemm timed = p.adds_in_place() ? sample_of(p) : p;
    Plan timed_plan = describe(timed);
    const TemporaryMemory scratch(p.adds_in_place() ? timed.c.rows * timed.row_bytes() : 0);
    void* const d = scratch.data ? scratch.data : p.d;
    Stopwatch watch(stream);
    const Candidates found = ask(p, plan);
    std::array<float, max_candidates> times;
    times.fill(never);
    for (int round = 0; round < timed_rounds; ++round) {
      const float limit = *std::min_element(times.begin(), times.end()) * close_time;
      for (int k = 0; k < found.count; ++k) {
        if (round > 0 && times[k] > limit) continue;
        timed_plan.algorithm = found.results[k].algo;
        const auto run = [&] { return launch(stream, timed, timed_plan, p.in_place() ? d : p.c.data, d); };
        if (found.results[k].state != CUBLAS_STATUS_SUCCESS || run() != CUBLAS_STATUS_SUCCESS) continue;
        watch.start();
        for (int i = 0; i < timed_runs; ++i) check(run(), "cublasLtMatmul");
        times[k] = std::min(times[k], watch.stop());
      }
    }
    const auto best = std::min_element(times.begin(), times.end());
    if (*best == never) throw std::runtime_error(no_algorithm);
    plan.algorithm = found.results[best - times.begin()].algo;
    return plan;
  }

  static constexpr float betas[] = {0, 1};
  static constexpr const char* no_algorithm = "cuBLASLt has no algorithm";

  bool reproducible_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<Key, Plan> plans_;
};

template <class T>
constexpr cudaDataType_t type_of() {
  if constexpr (std::is_same_v<T, float>) return CUDA_R_32F;
  if constexpr (std::is_same_v<T, bf16>) return CUDA_R_16BF;
  if constexpr (std::is_same_v<T, fp16>) return CUDA_R_16F;
  if constexpr (std::is_same_v<T, e4m3>) return CUDA_R_8F_E4M3;
  if constexpr (std::is_same_v<T, e5m2>) return CUDA_R_8F_E5M2;
}

template <class T>
Operand operand(Mat<T> m, Op op = Op::none) {
  return {m.data, type_of<std::remove_const_t<T>>(), m.rows, m.cols, m.ld, op == Op::transpose};
}

}  // namespace

void create_blas(Stream& stream, Gemms gemms) { stream.blas = new Blas(gemms); }

void destroy_blas(Stream& stream) {
  delete static_cast<Blas*>(stream.blas);
  stream.blas = nullptr;
}

template <class A, class B, class D>
void gemm(Stream stream, const GemmOptions& options, Op op_a, Mat<const A> a, Op op_b, Mat<const B> b, Mat<const D> c,
          Mat<D> d) {
  assert((op_a == Op::none ? a.rows : a.cols) == d.rows && (op_b == Op::none ? b.cols : b.rows) == d.cols);
  assert((op_a == Op::none ? a.cols : a.rows) == (op_b == Op::none ? b.rows : b.cols));
  assert(c.rows == d.rows && c.cols == d.cols && c.ld == d.ld);
  if (!stream.blas) throw std::logic_error("a GEMM on a stream without create_blas");
  static_cast<Blas*>(stream.blas)
      ->run(static_cast<cudaStream_t>(stream.handle),
            {options, operand(a, op_a), operand(b, op_b), operand(c), d.data});
}

#define NANORUN_GEMM(A, B, D) \
  template void gemm(Stream, const GemmOptions&, Op, Mat<const A>, Op, Mat<const B>, Mat<const D>, Mat<D>);
NANORUN_GEMM(bf16, bf16, bf16)
NANORUN_GEMM(bf16, bf16, float)
NANORUN_GEMM(fp16, fp16, fp16)
NANORUN_GEMM(e4m3, e4m3, bf16)
NANORUN_GEMM(e5m2, e4m3, bf16)

}  // namespace nanorun::kernels::cuda
