// oneDNN's convolutions on chunks of a batch, one primitive for each thread, and two ways to divide a weight gradient.
#pragma once
#include <omp.h>
#include <dnnl.hpp>

#include <cmath>
#include <cstdio>
#include <string>
#include <unordered_map>

#include "measure.hpp"

// ---- 1. oneDNN convolutions ----------------------------------------------------------------------------------------
struct Shape {
  int ci, co, size, kernel, stride;
  double flops(int n) const { return 2.0 * n * ci * co * kernel * kernel * (size / stride) * (size / stride); }
};
enum Direction { forward, backward_data, backward_weights };
inline const char* direction_name[] = {"fwd", "bwd_d", "bwd_w"};

// omp: number of OpenMP threads. The team belongs to the calling thread.
inline Job onednn(Shape s, Direction dir, bool half, bool blocked, int n, std::string* info = nullptr, int omp = 1) {
  using namespace dnnl;
  omp_set_num_threads(omp);
  using dt = memory::data_type;
  using tag = memory::format_tag;
  const dt type = half ? dt::bf16 : dt::f32;
  const int out = s.size / s.stride, pad = s.kernel / 2;
  auto layout = [&](int c) { return !blocked ? tag::nhwc : c < 16 ? tag::nchw : tag::nChw16c; };
  const memory::desc x({n, s.ci, s.size, s.size}, type, layout(s.ci)), y({n, s.co, out, out}, type, layout(s.co));
  const memory::desc w({s.co, s.ci, s.kernel, s.kernel}, type, tag::any);
  const memory::desc dw({s.co, s.ci, s.kernel, s.kernel}, dt::f32, tag::any);
  const memory::dims st{s.stride, s.stride}, side{pad, pad};
  engine eng(engine::kind::cpu, 0);
  stream str(eng);
  const auto algo = algorithm::convolution_direct;
  try {
    convolution_forward::primitive_desc f({prop_kind::forward_training, algo, x, w, y, st, side, side}, eng);
    auto run = [=](auto prim, int a, memory::desc am, int b, memory::desc bm, int c, memory::desc cm) mutable {
      std::vector<Shared> keep;
      std::unordered_map<int, memory> args;
      for (auto [id, md] : {std::pair{a, am}, {b, bm}, {c, cm}}) {
        keep.push_back(buffer(md.get_size()));
        args.emplace(id, memory(md, eng, keep.back()->as<void>()));
      }
      return Job([=, keep = std::move(keep)]() mutable { prim.execute(str, args), str.wait(); });
    };
    if (dir == forward) {
      if (info) *info = f.impl_info_str();
      return run(dnnl::convolution_forward(f), DNNL_ARG_SRC, x, DNNL_ARG_WEIGHTS, f.weights_desc(), DNNL_ARG_DST, y);
    }
    if (dir == backward_data) {
      convolution_backward_data::primitive_desc d({algo, x, w, y, st, side, side}, eng, f);
      if (info) *info = d.impl_info_str();
      return run(dnnl::convolution_backward_data(d), DNNL_ARG_DIFF_DST, y, DNNL_ARG_WEIGHTS, d.weights_desc(),
                 DNNL_ARG_DIFF_SRC, x);
    }
    convolution_backward_weights::primitive_desc d({algo, x, dw, y, st, side, side}, eng, f);
    if (info) *info = d.impl_info_str();
    return run(dnnl::convolution_backward_weights(d), DNNL_ARG_SRC, x, DNNL_ARG_DIFF_DST, y, DNNL_ARG_DIFF_WEIGHTS,
               d.diff_weights_desc());
  } catch (const dnnl::error& e) {
    if (info) *info = std::string("unavailable: ") + e.what();
    return {};
  }
}

inline void bench_conv(const std::vector<Shape>& shapes, bool half, int batch) {
  const double top = half ? peak<bf16>(1) : peak<float>(1);
  std::printf("peak %.0f GFLOP/s; columns: GFLOP/s per core\n%-18s %-4s %-5s", top, "shape", "lay", "dir");
  for (int n : {1, 2, 4, 8, 16, 32}) std::printf(" %5d", n);
  std::printf("  best%%  t2@4 t2@16 omp2@%d  implementation\n", batch);
  for (const Shape& s : shapes) {
    for (const bool blocked : {false, true}) {
      for (int dir = 0; dir < 3; ++dir) {
        const auto d = Direction(dir);
        if (d == backward_data && s.ci <= 16 && s.co == 16 && s.ci != 16) continue;  // the stem needs no input gradient
        std::string info;
        const bool ok = bool(onednn(s, d, half, blocked, 4, &info));
        std::printf("%3d>%3d k%d s%d @%-3d %-4s %-5s", s.ci, s.co, s.kernel, s.stride, s.size, blocked ? "16c" : "nhwc",
                    direction_name[dir]);
        if (!ok || info.find("ref") != std::string::npos) {
          std::printf("  *** %s\n", info.c_str());
          continue;
        }
        auto rate = [&](int n, int threads, int omp) {
          const clockid_t clock = omp > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
          auto make = [&] { return onednn(s, d, half, blocked, n, nullptr, omp); };
          return s.flops(n) / timed(threads, make, clock, 0.006) * 1e-9;
        };
        double best = 0;
        for (int n : {1, 2, 4, 8, 16, 32}) {
          const double g = rate(n, 1, 1);
          best = std::max(best, g);
          std::printf(" %5.0f", g);
        }
        const double team = dir == forward && !blocked ? rate(batch, 1, 2) / 2 : NAN;  // slow if other programs run
        std::printf("  %3.0f%%  %5.0f %5.0f %6.0f    %s\n", 100 * best / top, rate(4, 2, 1), rate(16, 2, 1), team,
                    info.c_str());
        std::fflush(stdout);
      }
    }
  }
}

// ---- 2. weight gradient of a whole batch, divided by output channels instead of images ------------------------------
inline void bench_split() {
  std::printf(
      "weight gradient, GFLOP/s per core, 2 threads. images: chunks of the batch, partial sums added; channels: a "
      "quarter of the output channels, slice of diff_dst copied\n");
  for (const Shape s : {Shape{256, 256, 8, 3, 1}, Shape{512, 512, 4, 3, 1}}) {
    for (const bool half : {false, true}) {
      std::printf("%d>%d @%d %s:", s.ci, s.co, s.size, half ? "bf16" : "f32 ");
      for (const int n : {4, 8, 16, 32}) {
        const long count = 9L * s.ci * s.co;
        auto make = [&] {
          Job conv = onednn(s, backward_weights, half, false, n);
          auto part = buffer(4 * count), sum = buffer(4 * count);
          return Job([=] {
            conv();
            float *a = sum->as<float>(), *b = part->as<float>();
            for (long i = 0; i < count; ++i) a[i] += b[i];
          });
        };
        std::printf("  images/%d %.0f", n, s.flops(n) / timed(2, make) * 1e-9);
      }
      const Shape slice{s.ci, s.co / 4, s.size, 3, 1};
      for (const int n : {32, 64}) {
        auto make = [&] {
          Job conv = onednn(slice, backward_weights, half, false, n);
          const std::size_t bytes = half ? 2 : 4, rows = std::size_t(n) * s.size * s.size;
          auto from = buffer(rows * s.co * bytes), to = buffer(rows * slice.co * bytes);
          return Job([=] {
            for (std::size_t r = 0; r < rows; ++r)
              std::memcpy(to->as<char>() + r * slice.co * bytes, from->as<char>() + r * s.co * bytes, slice.co * bytes);
            conv();
          });
        };
        std::printf("  channels/%d %.0f", n, slice.flops(n) / timed(2, make) * 1e-9);
      }
      std::printf("\n");
    }
  }
}
