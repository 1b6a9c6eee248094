// Measures the highest speed at which two cores can train small ResNets, from the pieces of a training step: oneDNN
// convolutions on chunks of a batch, fused batch-norm passes, and AVX-512 convolutions for few channels.
//
//   g++ -std=c++20 -O2 roofline.cpp -o /tmp/floor -fopenmp -ldnnl
//   /tmp/floor peak | conv r20|r18|stem f32|bf16 | split | bn | direct
//
// Every number is the best of several trials. "t2" columns run the same work in two threads on separate data.
#include <cstdio>
#include <string>

#include "batch_norm.hpp"
#include "convolutions.hpp"
#include "direct.hpp"

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "peak", net = argc > 2 ? argv[2] : "r20";
  const bool half = argc > 3 && std::string(argv[3]) == "bf16";
  if (what == "peak")
    std::printf("f32 %.0f, 2 threads %.0f; bf16 %.0f, 2 threads %.0f GFLOP/s per core\n", peak<float>(1),
                peak<float>(2), peak<bf16>(1), peak<bf16>(2));
  if (what == "conv" && net == "r20")
    bench_conv({{16, 16, 32, 3, 1},
                {16, 32, 32, 3, 2},
                {32, 32, 16, 3, 1},
                {32, 64, 16, 3, 2},
                {64, 64, 8, 3, 1},
                {16, 32, 32, 1, 2},
                {32, 64, 16, 1, 2}},
               half, 128);
  if (what == "conv" && net == "stem")
    bench_conv({{3, 16, 32, 3, 1}, {4, 16, 32, 3, 1}, {8, 16, 32, 3, 1}, {3, 64, 32, 3, 1}, {4, 64, 32, 3, 1}}, half,
               128);
  if (what == "conv" && net == "r18")
    bench_conv({{64, 64, 32, 3, 1},
                {64, 128, 32, 3, 2},
                {128, 128, 16, 3, 1},
                {128, 256, 16, 3, 2},
                {256, 256, 8, 3, 1},
                {256, 512, 8, 3, 2},
                {512, 512, 4, 3, 1},
                {64, 128, 32, 1, 2},
                {128, 256, 16, 1, 2},
                {256, 512, 8, 1, 2}},
               half, 64);
  if (what == "split") bench_split();
  if (what == "bn") bench_bn<float>("f32 "), bench_bn<bf16>("bf16");
  if (what == "direct") {
    const double f = peak<float>(1), b = peak<bf16>(1);
    bench_direct<float, 16, 32, 16, 1>(f), bench_direct<float, 32, 16, 8, 2>(f), bench_direct<float, 32, 16, 16, 1>(f),
        bench_direct<float, 64, 8, 8, 2>(f);
    bench_direct<bf16, 16, 32, 16, 1>(b), bench_direct<bf16, 32, 16, 8, 2>(b), bench_direct<bf16, 32, 16, 16, 1>(b),
        bench_direct<bf16, 64, 8, 8, 2>(b);
  }
}
