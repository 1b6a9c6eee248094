// SPDX-License-Identifier: MIT
#pragma once

// Source of kernels: softmax cross entropy.
namespace tutti::cuda::kernels {

inline constexpr char loss[] = R"cuda(
inline float block_max(float v, float* room) {
  __syncthreads();
  room[threadIdx.x] = v;
  for (int h = blockDim.x / 2; h > 0; h /= 2) {
    __syncthreads();
    if (threadIdx.x < h) room[threadIdx.x] = fmaxf(room[threadIdx.x], room[threadIdx.x + h]);
  }
  __syncthreads();
  return room[0];
}
template <class N>
inline N block_sum(N v, N* room) {
  __syncthreads();
  room[threadIdx.x] = v;
  for (int h = blockDim.x / 2; h > 0; h /= 2) {
    __syncthreads();
    if (threadIdx.x < h) room[threadIdx.x] += room[threadIdx.x + h];
  }
  __syncthreads();
  return room[0];
}

// One block of 128 threads for each row. ranks: the number of logits above the label's; -1: the row is ignored, -2: its
// label is not a class. dlogits may be null.
template <class T>
__global__ void softmax_rows(const T* logits, const int* labels, T* dlogits, double* losses, int* ranks,
                             const double* scale, int classes, float smoothing) {
  wait_for_earlier_kernels();
  __shared__ float floats[128];
  __shared__ double doubles[128];
  __shared__ int ints[128];
  const i64 row = blockIdx.x;
  const T* z = logits + row * classes;
  T* d = dlogits ? dlogits + row * classes : nullptr;
  const int label = labels[row];
  if (label < 0 || label >= classes) {
    if (threadIdx.x == 0) {
      losses[row] = 0;
      ranks[row] = label == -1 ? -1 : -2;
    }
    if (d)
      for (int k = threadIdx.x; k < classes; k += blockDim.x) d[k] = from_float<T>(0.0f);
    return;
  }
  const float zt = to_float(z[label]);
  float top = __int_as_float(0xff800000);  // minus infinity
  for (int k = threadIdx.x; k < classes; k += blockDim.x) top = fmaxf(top, to_float(z[k]));
  top = block_max(top, floats);
  double sum = 0, all = 0;
  int above = 0;
  for (int k = threadIdx.x; k < classes; k += blockDim.x) {
    const float v = to_float(z[k]);
    sum += (double)expf(v - top);
    all += (double)v;
    // Among equal logits the lowest index ranks first, so that constant logits do not score 100 %. A NaN ranks above
    // the label's logit.
    above += k != label && (!(v < zt) && (v != zt || k < label));
  }
  sum = block_sum(sum, doubles);
  all = block_sum(all, doubles);
  above = block_sum(above, ints);
  if (threadIdx.x == 0) {
    const double log_sum = (double)top + log(sum), smooth = (double)smoothing;
    losses[row] = (1 - smooth) * (log_sum - (double)zt) + smooth * (log_sum - all / classes);
    ranks[row] = above;
  }
  if (!d) return;
  const float s = (float)*scale, inverse = (float)(1 / sum), off = smoothing / (float)classes;
  for (int k = threadIdx.x; k < classes; k += blockDim.x)
    d[k] = from_float<T>(s * (expf(to_float(z[k]) - top) * inverse - off - (k == label ? 1 - smoothing : 0.0f)));
}

// One block of 256 threads: computes metrics [4]. If a label is not a class, writes 1, the first such label and the
// number of classes to `report`, which the host reads, and sets the loss to NaN: the net must not learn from it.
__global__ void loss_finish(const double* losses, const int* ranks, const int* labels, i64 rows, int top_k,
                            int classes, double* metrics, int* report) {
  wait_for_earlier_kernels();
  __shared__ double doubles[256];
  __shared__ int bad[256];
  double loss = 0, top1 = 0, topk = 0;
  int first = 0x7fffffff;
  for (i64 r = threadIdx.x; r < rows; r += blockDim.x) {
    loss += losses[r];
    top1 += ranks[r] == 0;
    topk += ranks[r] >= 0 && ranks[r] < top_k;
    if (ranks[r] == -2 && r < first) first = (int)r;
  }
  loss = block_sum(loss, doubles);
  top1 = block_sum(top1, doubles);
  topk = block_sum(topk, doubles);
  bad[threadIdx.x] = first;
  __syncthreads();
  if (threadIdx.x != 0) return;
  metrics[1] = top1;
  metrics[2] = topk;
  metrics[3] = (double)rows;
  for (int i = 1; i < 256; ++i) first = bad[i] < first ? bad[i] : first;
  metrics[0] = first != 0x7fffffff ? (double)__int_as_float(0x7fc00000) : loss;
  if (first != 0x7fffffff) {
    report[1] = labels[first];
    report[2] = classes;
    __threadfence_system();
    report[0] = 1;
  }
}
)cuda";

}  // namespace tutti::cuda::kernels
