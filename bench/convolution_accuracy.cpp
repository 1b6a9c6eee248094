// SPDX-License-Identifier: MIT
// Compares algorithms for convolutions by their effect on training: logits and weights after one step and after many.
// Winograd's algorithm, and sums of products in another order (both by the Eigen backend), are compared with sums of
// products by oneDNN. Prints a table in Markdown.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/backends/make.hpp>
#include <tutti/engine/executor.hpp>

#include "engine/comparison.hpp"
#include "engine/op_cases.hpp"

using namespace tutti;

namespace {

constexpr const char* help_text =
    "usage: convolution_accuracy [--net NAME] [--rows 8] [--steps 100] [--precision f32|bf16] [--threads 0]\n"
    "NAME: resnet20, preact50, resnet18 or resnet50; default: all of them. Needs the backends onednn and eigen.\n";

struct Args {
  std::string net, precision = "f32";
  std::int64_t rows = 8;
  int steps = 100, threads = 0;
};

// The result of one training.
struct Outcome {
  std::vector<double> logits, weights;
};

// Trains from the same weights on the same few batches. Keeps the logits of the steps in `looks`, and the weights after
// these steps.
std::vector<Outcome> train(const testing::ResnetCase& net, const Args& a, const std::string& backend_name,
                           const std::string& convolution, const std::vector<int>& looks) {
  BackendOptions o;
  o.threads = a.threads;
  o.convolution = convolution;
  const auto backend = make_backend(backend_name, o);
  Executor e(*backend, net.graph, {a.precision == "bf16" ? DType::bf16 : DType::f32});
  testing::randomize(e, 1);
  std::vector<testing::Batch> batches;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) batches.push_back(testing::random_batch(net.graph, a.rows, seed));
  std::vector<float> momentum(e.parameters().count);
  std::vector<Outcome> found;
  for (int step = 0; step < looks.back(); ++step) {
    e.train(batches[static_cast<std::size_t>(step) % batches.size()].view(), {1, 1.0 / static_cast<double>(a.rows)});
    UpdateCall u;
    u.weights = e.parameter_data();
    u.gradients = e.gradient_data();
    u.slots[0] = momentum.data();
    u.count = e.parameters().count;
    u.lr = 0.01;
    u.weight_decay = 1e-4;
    backend->update(SgdUpdate{0.9, false}, u);
    e.parameters_changed();
    if (std::find(looks.begin(), looks.end(), step + 1) == looks.end()) continue;
    const auto* const w = static_cast<const float*>(e.parameter_data());
    found.push_back({testing::fetch(*backend, e.value(e.graph().logits)), {w, w + e.parameters().count}});
  }
  return found;
}

// Returns the RMS of the difference divided by the RMS of `b`.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, all = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    all += b[i] * b[i];
  }
  return std::sqrt(difference / all);
}

void compare(const testing::ResnetCase& net, const Args& a) {
  const std::vector<int> looks{1, a.steps};
  const auto direct = train(net, a, "onednn", "direct", looks);
  const auto print = [&](const char* what, const std::vector<Outcome>& other) {
    std::printf("| %s %s | %s |", net.name.c_str(), a.precision.c_str(), what);
    for (std::size_t i = 0; i < looks.size(); ++i)
      std::printf(" %.1e | %.1e |", distance(other[i].logits, direct[i].logits),
                  distance(other[i].weights, direct[i].weights));
    std::printf("\n");
    std::fflush(stdout);
  };
  print("another order", train(net, a, "eigen", "direct", looks));
  print("winograd", train(net, a, "onednn", "winograd", looks));
}

Args parse(int argc, char** argv) {
  Args a;
  const auto number = [](std::string_view flag, const std::string& word) {
    char* end = nullptr;
    const long n = std::strtol(word.c_str(), &end, 10);
    if (word.empty() || *end != '\0' || n < 1 || n > 1000000)
      fail<UsageError>(std::string(flag), "a number from 1 to 1000000", "'" + word + "'");
    return static_cast<int>(n);
  };
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--help") {
      std::fputs(help_text, stdout);
      std::exit(0);
    }
    if (i + 1 == argc) fail<UsageError>(std::string(flag), "an option with its value", "no value", help_text);
    const std::string word = argv[++i];
    if (flag == "--net")
      a.net = word;
    else if (flag == "--rows")
      a.rows = number(flag, word);
    else if (flag == "--steps")
      a.steps = number(flag, word);
    else if (flag == "--precision" && (word == "f32" || word == "bf16"))
      a.precision = word;
    else if (flag == "--threads")
      a.threads = number(flag, word);
    else
      fail<UsageError>(std::string(flag), "an option of this program", "'" + word + "'", help_text);
  }
  return a;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Args a = parse(argc, argv);
    bool found = false;
    for (const testing::ResnetCase& net : testing::resnet_cases()) {
      if (!a.net.empty() && a.net != net.name) continue;
      if (!found)
        std::printf(
            "| net | compared with direct | logits, 1 step | weights | logits, %d steps | weights |\n"
            "|---|---|---|---|---|---|\n",
            a.steps);
      found = true;
      compare(net, a);
    }
    if (!found) fail<UsageError>("--net", "resnet20, preact50, resnet18 or resnet50", "'" + a.net + "'");
    return 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "convolution_accuracy: %s\n", e.what());
    return e.exit_code();
  }
}
