// SPDX-License-Identifier: MIT
#pragma once

// Source of kernels: the end of a training step on the device. This source must follow kernels/update.hpp.
namespace tutti::cuda::kernels {

inline constexpr char step[] = R"cuda(
// The numbers of one step. The host writes them (step_finisher.hpp).
struct StepNumbers {
  double lr, inverse_batch, loss_scale, average, c1, c2;
  i64 step;
  unsigned flags;
  int slot, restart, unused;
};
// flag_not_finite: the flag of a rank that the device sets. halt_...: the reasons for the end of a run.
enum { flag_not_finite = 4, flags_in_word = 8 };
enum { halt_no = 0, halt_loss = 1, halt_loss_elsewhere = 2, halt_gradients = 3 };

// The state on the device that outlives a step, and the current results of this step.
struct StepState {
  i64 exponent, scale_steps;   // of a dynamic loss scale
  i64 halted_step;             // the step with a loss or gradients that are not finite; 0: no such step
  int halted_why, skip;        // skip: this step changes no weights
  double halted_loss, halted_rows;
  double totals[4];            // metrics of the steps since the last query
  double metrics[4];           // of this step
  double scale, lr;            // of this step; scale: the loss scale
  float gradient_scale, average, c1, c2;
};
// The results for the host, in its memory.
struct StepOutcome {
  i64 step, exponent, scale_steps, halted_step;
  int halted_why;
  unsigned flags;
  double halted_loss, halted_rows;
  double totals[4], metrics[4];
};

// A piece of a run of parameters, for one block. run: the number of the run.
struct Chunk {
  i64 begin;
  int count, run;
};
struct Run {
  float lr_scale, weight_decay, factor, unused;
};
struct StepRules {
  double clip_norm, max_grad_norm, eta;
  int trust;    // 0: no trust ratio, 1: LARS, 2: LARC
  int dynamic;  // the loss scale is dynamic
  int chunks, runs;
  int normed;   // squared norms were computed
};

inline bool is_finite(double x) { return x - x == 0; }

__global__ void step_begin(const StepNumbers* numbers, StepState* s, double* loss_scale, int dynamic) {
  wait_for_earlier_kernels();
  s->scale = dynamic ? ldexp(1.0, (int)s->exponent) : numbers->loss_scale;
  *loss_scale = s->scale * numbers->inverse_batch;
}

// Adds the metrics of a micro-batch. word: null, except in the last micro-batch if there are several ranks. There the
// rank writes its flags as numbers, before the gradients, so that the ranks sum the flags with the gradients.
__global__ void step_metrics(const StepNumbers* numbers, StepState* s, const double* metrics, int first, float* word) {
  wait_for_earlier_kernels();
  for (int i = 0; i < 4; ++i) s->metrics[i] = (first ? 0 : s->metrics[i]) + (metrics ? metrics[i] : 0);
  if (!word) return;
  const unsigned flags = numbers->flags | (is_finite(s->metrics[0]) ? 0 : flag_not_finite);
  for (int i = 0; i < flags_in_word; ++i) word[i] = flags >> i & 1 ? 1.0f : 0.0f;
}

// Computes N sums over a block of 256 threads; every thread gets the sums. room: N * 256 numbers.
template <int N>
inline void block_sums(double (&v)[N], double* room) {
  __syncthreads();
  for (int k = 0; k < N; ++k) room[256 * k + threadIdx.x] = v[k];
  for (int h = 128; h > 0; h /= 2) {
    __syncthreads();
    if (threadIdx.x < h)
      for (int k = 0; k < N; ++k) room[256 * k + threadIdx.x] += room[256 * k + threadIdx.x + h];
  }
  __syncthreads();
  for (int k = 0; k < N; ++k) v[k] = room[256 * k];
}

// Sums for each chunk. N == 1: g * g. N == 3: w * w, w * g, g * g.
template <int N>
__global__ void step_norms(const float* w, const float* g, const Chunk* chunks, double* partial) {
  wait_for_earlier_kernels();
  __shared__ double room[256 * N];
  const Chunk c = chunks[blockIdx.x];
  double sums[N];
  for (int k = 0; k < N; ++k) sums[k] = 0;
  for (int i = 4 * threadIdx.x; i < c.count; i += 4 * blockDim.x) {
    float wi[4], gi[4];
    load_floats<float, 4>(g + c.begin + i, gi);
    if (N == 3) load_floats<float, 4>(w + c.begin + i, wi);
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
      const double b = gi[j];
      if (N == 3) {
        const double a = wi[j];
        sums[0] += a * a;
        sums[1] += a * b;
      }
      sums[N - 1] += b * b;
    }
  }
  block_sums<N>(sums, room);
  if (threadIdx.x == 0)
    for (int k = 0; k < N; ++k) partial[N * blockIdx.x + k] = sums[k];
}
// One block per run: adds up the sums of its chunks, from first[run] up to first[run + 1].
__global__ void step_run_norms(const double* partial, const int* first, double* norms) {
  wait_for_earlier_kernels();
  __shared__ double room[768];
  double sums[3] = {0, 0, 0};
  for (int c = first[blockIdx.x] + (int)threadIdx.x; c < first[blockIdx.x + 1]; c += 256)
    for (int k = 0; k < 3; ++k) sums[k] += partial[3 * c + k];
  block_sums<3>(sums, room);
  if (threadIdx.x == 0)
    for (int k = 0; k < 3; ++k) norms[3 * blockIdx.x + k] = sums[k];
}

// One block of 256 threads: decides whether the step counts, and computes the numbers for its update and for the host.
// norms: with LARS and LARC three numbers for each run, otherwise one for each chunk. word: the sum of the flags of all
// ranks, or null.
__global__ void step_decide(const StepNumbers* numbers, StepState* s, const double* norms, Run* runs, const float* word,
                            StepRules rules, StepOutcome* outcomes) {
  wait_for_earlier_kernels();
  __shared__ double room[256];
  __shared__ double scales[1];
  double sum[1] = {0};
  if (rules.normed && rules.trust)
    for (int r = threadIdx.x; r < rules.runs; r += 256) sum[0] += norms[3 * r + 2];
  else if (rules.normed)
    for (int c = threadIdx.x; c < rules.chunks; c += 256) sum[0] += norms[c];
  block_sums<1>(sum, room);
  if (threadIdx.x == 0) {
    unsigned flags = numbers->flags;
    const bool finite = is_finite(s->metrics[0]);
    if (word) {
      for (int i = 0; i < flags_in_word; ++i)
        if (!(word[i] == 0)) flags |= 1u << i;
    } else if (!finite) {
      flags |= flag_not_finite;
    }
    if (s->halted_step == 0 && (flags & flag_not_finite)) {
      s->halted_step = numbers->step;
      s->halted_why = finite ? halt_loss_elsewhere : halt_loss;
      s->halted_loss = s->metrics[0];
      s->halted_rows = s->metrics[3];
    }
    int skip = s->halted_step != 0;
    if (!skip && rules.dynamic) {
      if (is_finite(sum[0])) {
        if (++s->scale_steps >= 2000) {
          s->exponent = s->exponent < 126 ? s->exponent + 1 : 126;
          s->scale_steps = 0;
        }
      } else {
        skip = 1;
        if (s->exponent == 0) {
          s->halted_step = numbers->step;
          s->halted_why = halt_gradients;
        } else {
          s->exponent -= 1;
          s->scale_steps = 0;
        }
      }
    }
    double clip = 1;
    const double inverse = 1 / s->scale;
    if (rules.clip_norm > 0) {
      // PyTorch's formula, with 1e-6 against a norm of zero.
      const double most = rules.clip_norm / (sqrt(sum[0]) * (double)(float)inverse + 1e-6);
      if (most < 1) clip = most;
    }
    if (rules.max_grad_norm > 0) {
      const double over = sqrt(sum[0]) * (double)(float)inverse * clip / rules.max_grad_norm;
      if (over > 1) clip /= over;
    }
    scales[0] = inverse * clip;
    s->skip = skip;
    s->lr = numbers->lr;
    s->gradient_scale = (float)scales[0];
    s->average = (float)numbers->average;
    s->c1 = (float)numbers->c1;
    s->c2 = (float)numbers->c2;
    for (int i = 0; i < 4; ++i) {
      if (numbers->restart) s->totals[i] = 0;
      if (s->halted_step == 0) s->totals[i] += s->metrics[i];
    }
    StepOutcome o;
    o.step = numbers->step;
    o.exponent = s->exponent;
    o.scale_steps = s->scale_steps;
    o.halted_step = s->halted_step;
    o.halted_why = s->halted_why;
    o.flags = flags;
    o.halted_loss = s->halted_loss;
    o.halted_rows = s->halted_rows;
    for (int i = 0; i < 4; ++i) {
      o.totals[i] = s->totals[i];
      o.metrics[i] = s->metrics[i];
    }
    outcomes[numbers->slot] = o;
  }
  if (!rules.trust) return;
  __syncthreads();
  const double scale = (double)(float)scales[0];
  for (int r = threadIdx.x; r < rules.runs; r += 256) {
    const double decay = (double)runs[r].weight_decay, lr = numbers->lr * (double)runs[r].lr_scale;
    const double weights = norms[3 * r], cross = norms[3 * r + 1], squares = norms[3 * r + 2];
    const double gradients = scale * scale * squares + 2 * scale * decay * cross + decay * decay * weights;
    double factor = weights > 0 && gradients > 0 ? rules.eta * sqrt(weights / gradients) : 1;
    if (rules.trust == 2) factor = lr > 0 ? (factor / lr < 1 ? factor / lr : 1) : 1;
    runs[r].factor = (float)factor;
  }
}

// Calls f(first element, run) for each four elements of this block's chunk. Makes no call if the step changes no
// weights.
template <class F>
inline void each_of_chunk(const StepState* s, const Chunk* chunks, const Run* runs, F f) {
  if (s->skip) return;
  const Chunk c = chunks[blockIdx.x];
  const Run r = runs[c.run];
  for (int i = 4 * threadIdx.x; i < c.count; i += 4 * blockDim.x) f(c.begin + i, r);
}
__global__ void step_sgd(float* w, const float* g, float* a, const Chunk* chunks, const Run* runs, const StepState* s,
                         float momentum, int nesterov) {
  wait_for_earlier_kernels();
  each_of_chunk(s, chunks, runs, [&](i64 i, const Run& r) {
    const float lr = (float)(s->lr * r.lr_scale), scale = s->gradient_scale;
    float wi[4], gi[4], ai[4];
    load_floats<float, 4>(w + i, wi);
    load_floats<float, 4>(g + i, gi);
    load_floats<float, 4>(a + i, ai);
    #pragma unroll
    for (int j = 0; j < 4; ++j)
      sgd_element(wi[j], gi[j], ai[j], lr, scale, r.weight_decay, r.factor, momentum, nesterov);
    store_floats<float, 4>(a + i, ai);
    store_floats<float, 4>(w + i, wi);
  });
}
__global__ void step_adamw(float* w, const float* g, float* m, float* v, const Chunk* chunks, const Run* runs,
                           const StepState* s, Adamw o) {
  wait_for_earlier_kernels();
  each_of_chunk(s, chunks, runs, [&](i64 i, const Run& r) {
    const float lr = (float)(s->lr * r.lr_scale), scale = s->gradient_scale, c1 = s->c1, c2 = s->c2;
    float wi[4], gi[4], mi[4], vi[4];
    load_floats<float, 4>(w + i, wi);
    load_floats<float, 4>(g + i, gi);
    load_floats<float, 4>(m + i, mi);
    load_floats<float, 4>(v + i, vi);
    #pragma unroll
    for (int j = 0; j < 4; ++j)
      adamw_element(wi[j], gi[j], mi[j], vi[j], lr, scale, r.weight_decay, r.factor, o, c1, c2);
    store_floats<float, 4>(m + i, mi);
    store_floats<float, 4>(v + i, vi);
    store_floats<float, 4>(w + i, wi);
  });
}

// LAMB: updates the moments, and takes the sums of squares of the weights and of the direction for each chunk, in the
// places of step_norms<3>. step_run_norms adds them up.
__global__ void step_lamb_moments(const float* w, const float* g, float* m, float* v, const Chunk* chunks,
                                  const Run* runs, const StepState* s, Lamb o, double* partial) {
  wait_for_earlier_kernels();
  __shared__ double room[768];
  double sums[3] = {0, 0, 0};
  each_of_chunk(s, chunks, runs, [&](i64 i, const Run& r) {
    float wi[4], gi[4], mi[4], vi[4];
    load_floats<float, 4>(w + i, wi);
    load_floats<float, 4>(g + i, gi);
    load_floats<float, 4>(m + i, mi);
    load_floats<float, 4>(v + i, vi);
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
      lamb_element(gi[j], mi[j], vi[j], s->gradient_scale, r.factor, o);
      const double d = lamb_direction(wi[j], mi[j], vi[j], r.weight_decay, o, s->c1, s->c2);
      sums[0] += (double)wi[j] * wi[j];
      sums[2] += d * d;
    }
    store_floats<float, 4>(m + i, mi);
    store_floats<float, 4>(v + i, vi);
  });
  block_sums<3>(sums, room);
  if (threadIdx.x == 0)
    for (int k = 0; k < 3; ++k) partial[3 * blockIdx.x + k] = sums[k];
}
__global__ void step_lamb(float* w, const float* m, const float* v, const Chunk* chunks, const Run* runs,
                          const StepState* s, Lamb o, const double* norms) {
  wait_for_earlier_kernels();
  const int run = chunks[blockIdx.x].run;
  const float rate = lamb_rate(norms[3 * run], norms[3 * run + 2], runs[run].weight_decay,
                               (float)(s->lr * runs[run].lr_scale), o);
  each_of_chunk(s, chunks, runs, [&](i64 i, const Run& r) {
    float wi[4], mi[4], vi[4];
    load_floats<float, 4>(w + i, wi);
    load_floats<float, 4>(m + i, mi);
    load_floats<float, 4>(v + i, vi);
    #pragma unroll
    for (int j = 0; j < 4; ++j)
      wi[j] = fmaf(-rate, lamb_direction(wi[j], mi[j], vi[j], r.weight_decay, o, s->c1, s->c2), wi[j]);
    store_floats<float, 4>(w + i, wi);
  });
}

// Divides the sums of the ranks by their number. Has no effect after the end of the run.
__global__ void step_mean(float* to, const float* sums, i64 n, float ranks, const StepState* s) {
  wait_for_earlier_kernels();
  if (s->halted_step != 0) return;
  for (i64 i = first_index(); i < n; i += index_step()) to[i] = sums[i] / ranks;
}
// Updates the weight EMA. Has no effect after the end of the run.
__global__ void step_average(float* to, const float* from, i64 n, const StepState* s) {
  wait_for_earlier_kernels();
  const float decay = s->average;
  if (s->halted_step != 0 || decay == 1) return;
  for (i64 i = 4 * first_index(); i < n; i += 4 * index_step()) {
    float a[4], b[4];
    load_floats<float, 4>(to + i, a);
    load_floats<float, 4>(from + i, b);
    #pragma unroll
    for (int j = 0; j < 4; ++j) a[j] = average_element(a[j], b[j], decay);
    store_floats<float, 4>(to + i, a);
  }
}
)cuda";

}  // namespace tutti::cuda::kernels
