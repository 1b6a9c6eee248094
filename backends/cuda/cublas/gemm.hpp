// SPDX-License-Identifier: MIT
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include <tutti/backends/cuda/api/cublaslt.hpp>
#include <tutti/backends/cuda/async_init.hpp>
#include <tutti/backends/cuda/cublas/gemm_layout.hpp>
#include <tutti/backends/cuda/device.hpp>
#include <tutti/core/dtype.hpp>

namespace tutti::cuda {

inline void check_cublas(cublasStatus_t s, const std::string& where, const std::string& expected) {
  if (s == CUBLAS_STATUS_SUCCESS) return;
  fail<DeviceError>({"cublas ", where}, expected, {cublasLtGetStatusName(s), " (", cublasLtGetStatusString(s), ")"});
}

[[nodiscard]] inline cudaDataType_t cublas_type(DType t) {
  switch (t) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      fail<UsageError>("cublas", "f32, bf16 or f16", name_of(t));
  }
}

struct GemmOptions {
  bool tf32 = false;                                    // f32 products with the precision of TF32
  std::size_t workspace_bytes = std::size_t{32} << 20;  // NVIDIA's recommendation for Hopper; enough for other GPUs
};

namespace detail {

struct CublasDelete {
  void operator()(cublasLtMatmulDesc_t p) const noexcept { cublasLtMatmulDescDestroy(p); }
  void operator()(cublasLtMatrixLayout_t p) const noexcept { cublasLtMatrixLayoutDestroy(p); }
  void operator()(cublasLtMatmulPreference_t p) const noexcept { cublasLtMatmulPreferenceDestroy(p); }
};
template <class T>
using CublasOwner = std::unique_ptr<std::remove_pointer_t<T>, CublasDelete>;

}  // namespace detail

// The description of one product for cuBLASLt; needs no device. with_bias: the forward pass adds a bias, and
// backward_weights also sums dy over the rows.
class GemmDescription {
 public:
  GemmDescription(LinearPass pass, const LinearProblem& p, bool with_bias, bool tf32)
      : name_(to_string(pass) + " " + to_string(p)) {
    const GemmLayout g = gemm_layout(pass, p);
    const cudaDataType_t in = cublas_type(p.type);
    const bool wide = pass == LinearPass::backward_weights || (pass == LinearPass::forward && p.wide);
    const cudaDataType_t out = wide ? CUDA_R_32F : in;
    cublasLtMatmulDesc_t desc = nullptr;
    const auto compute = p.type == DType::f32 && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    check_cublas(cublasLtMatmulDescCreate(&desc, compute, CUDA_R_32F), name_, "a description");
    desc_.reset(desc);
    set(CUBLASLT_MATMUL_DESC_TRANSA, g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, "TRANSA");
    set(CUBLASLT_MATMUL_DESC_TRANSB, g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, "TRANSB");
    if (with_bias && pass != LinearPass::backward_data) {
      // In the forward pass the bias has one value for each row of D. In the other pass the sums have one value for
      // each column of D.
      set(CUBLASLT_MATMUL_DESC_EPILOGUE,
          pass == LinearPass::forward ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_BGRADB, "EPILOGUE");
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(CUDA_R_32F), "BIAS_DATA_TYPE");
    }
    a_ = matrix(g.a, in);
    b_ = matrix(g.b, in);
    d_ = matrix(g.d, out);
    swapped_ = g.swapped;
  }

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] cublasLtMatmulDesc_t desc() const noexcept { return desc_.get(); }
  [[nodiscard]] cublasLtMatrixLayout_t a() const noexcept { return a_.get(); }
  [[nodiscard]] cublasLtMatrixLayout_t b() const noexcept { return b_.get(); }
  [[nodiscard]] cublasLtMatrixLayout_t d() const noexcept { return d_.get(); }
  [[nodiscard]] bool swapped() const noexcept { return swapped_; }
  void set_bias(void* bias) { set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias, "BIAS_POINTER"); }

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value, const char* what) {
    check_cublas(cublasLtMatmulDescSetAttribute(desc_.get(), attribute, &value, sizeof value), name_,
                 std::string("CUBLASLT_MATMUL_DESC_") + what + " to be taken");
  }
  [[nodiscard]] detail::CublasOwner<cublasLtMatrixLayout_t> matrix(const GemmMatrix& m, cudaDataType_t type) const {
    cublasLtMatrixLayout_t layout = nullptr;
    check_cublas(cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(m.rows),
                                            static_cast<std::uint64_t>(m.columns), m.step),
                 name_, "a matrix layout");
    return detail::CublasOwner<cublasLtMatrixLayout_t>(layout);
  }

  std::string name_;
  detail::CublasOwner<cublasLtMatmulDesc_t> desc_;
  detail::CublasOwner<cublasLtMatrixLayout_t> a_, b_, d_;
  bool swapped_ = false;
};

// Matrix products of fully connected layers on one device. The kernel of a problem is chosen once. Calls must come from
// one thread at a time.
class Gemms {
 public:
  explicit Gemms(const Device& device, GemmOptions options = {}) : device_(device), options_(options) {}
  Gemms(const Gemms&) = delete;
  Gemms& operator=(const Gemms&) = delete;

  // Returns the library's version.
  [[nodiscard]] static std::string version() { return cublaslt_version(); }
  // Starts a thread that opens the library, half a gigabyte, and creates its handle. The first problem waits for it.
  // Without this call, the first problem opens the library.
  void begin() {
    handle_.begin([&d = device_] {
      d.use();
      auto h = std::make_unique<Handle>();
      check_cublas(cublasLtCreate(&h->raw), "handle", "a handle of " + d.name());
      return h;
    });
  }

  // Returns the bytes that run() needs for this problem. Throws DeviceError if cuBLASLt has no kernel for it.
  [[nodiscard]] std::size_t workspace_bytes(LinearPass pass, const LinearProblem& p, bool with_bias) {
    return chosen(pass, p, with_bias).workspace;
  }
  // forward: a = x, b = w, bias = the bias or null, out = y. backward_data: a = dy, b = w, out = dx.
  // backward_weights: a = x, b = dy, bias = db or null (f32, written), out = dw (f32). workspace:
  // workspace_bytes(), aligned to 256 bytes; null if there are 0.
  // Returns true if the bias was added or its gradient was summed. Otherwise the caller must do it: cuBLASLt handles a
  // bias only if it has the type of y, and tutti's is f32.
  bool run(LinearPass pass, const LinearProblem& p, const void* a, const void* b, void* bias, void* out,
           void* workspace, cudaStream_t stream) {
    Chosen& c = chosen(pass, p, bias != nullptr);
    if (c.bias) c.description.set_bias(bias);
    if (c.description.swapped()) std::swap(a, b);
    const float one = 1, zero = 0;
    check_cublas(
        cublasLtMatmul(handle(), c.description.desc(), &one, a, c.description.a(), b, c.description.b(), &zero, out,
                       c.description.d(), out, c.description.d(), &c.algorithm, workspace, c.workspace, stream),
        c.description.name(), "it to start");
    return c.bias;
  }

 private:
  struct Chosen {
    GemmDescription description;
    cublasLtMatmulAlgo_t algorithm;
    std::size_t workspace;
    bool bias;
  };
  struct Key {
    LinearPass pass;
    LinearProblem problem;
    bool with_bias;
    auto operator<=>(const Key&) const = default;  // NOLINT(modernize-use-nullptr): there is no pointer
  };

  struct Handle {
    cublasLtHandle_t raw = nullptr;
    Handle() = default;
    ~Handle() {
      if (raw != nullptr) cublasLtDestroy(raw);
    }
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
  };
  [[nodiscard]] cublasLtHandle_t handle() {
    begin();
    return handle_.get().raw;
  }

  Chosen& chosen(LinearPass pass, const LinearProblem& p, bool with_bias) {
    const bool bias = with_bias && pass != LinearPass::backward_data;
    const Key key{pass, p, bias};
    if (const auto found = chosen_.find(key); found != chosen_.end()) return found->second;
    auto c = choose(pass, p, bias);
    if (!c && bias) c = choose(pass, p, false);
    if (!c)
      fail<DeviceError>({"cublas ", to_string(pass)}, {"a kernel for ", to_string(p)},
                        "no suitable kernel in cuBLASLt");
    return chosen_.emplace(key, *std::move(c)).first->second;
  }

  std::optional<Chosen> choose(LinearPass pass, const LinearProblem& p, bool bias) {
    GemmDescription description(pass, p, bias, options_.tf32);
    cublasLtMatmulPreference_t raw = nullptr;
    check_cublas(cublasLtMatmulPreferenceCreate(&raw), description.name(), "a preference");
    const detail::CublasOwner<cublasLtMatmulPreference_t> preference(raw);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check_cublas(cublasLtMatmulPreferenceSetAttribute(raw, attribute, &value, sizeof value), description.name(),
                   "a preference to be taken");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(options_.workspace_bytes));
    // Adds partial sums in f32, not in the type of the output.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      set(attribute, std::uint32_t{16});
    // The address does not influence the choice, but a null address is refused.
    if (bias) description.set_bias(this);
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    const cublasStatus_t s =
        cublasLtMatmulAlgoGetHeuristic(handle(), description.desc(), description.a(), description.b(), description.d(),
                                       description.d(), raw, 1, &result, &count);
    if (s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE) return {};
    check_cublas(s, description.name(), "a choice of kernels");
    if (count < 1 || result.state != CUBLAS_STATUS_SUCCESS) return {};
    return Chosen{std::move(description), result.algo, result.workspaceSize, bias};
  }

  const Device& device_;
  GemmOptions options_;
  AsyncInit<Handle> handle_;
  std::map<Key, Chosen> chosen_;
};

}  // namespace tutti::cuda
