// SPDX-License-Identifier: MIT
// The ResNets of tutti_step on libtorch: whole training steps (forward, cross entropy, backward, SGD) on synthetic
// data, channels-last, in images per second. Prints the same JSON line as tutti_step.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

namespace {

namespace nn = torch::nn;
using torch::Tensor;

nn::Conv2d conv(int in, int out, int kernel, int stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

// A basic or a bottleneck block (v1.5: the stride is in the 3x3 convolution), post-activation.
struct BlockImpl : nn::Module {
  BlockImpl(int in, int width, int stride, bool bottleneck) : bottleneck_(bottleneck) {
    const int out = bottleneck ? 4 * width : width;
    if (bottleneck) {
      conv1 = register_module("conv1", conv(in, width, 1, 1));
      conv2 = register_module("conv2", conv(width, width, 3, stride));
      conv3 = register_module("conv3", conv(width, out, 1, 1));
      bn3 = register_module("bn3", nn::BatchNorm2d(out));
    } else {
      conv1 = register_module("conv1", conv(in, width, 3, stride));
      conv2 = register_module("conv2", conv(width, width, 3, 1));
    }
    bn1 = register_module("bn1", nn::BatchNorm2d(width));
    bn2 = register_module("bn2", nn::BatchNorm2d(width));
    if (stride != 1 || in != out)
      downsample = register_module("downsample", nn::Sequential(conv(in, out, 1, stride), nn::BatchNorm2d(out)));
  }

  Tensor forward(const Tensor& x) {
    Tensor y = bn1(conv1(x)).relu_();
    y = bn2(conv2(y));
    if (bottleneck_) y = bn3(conv3(y.relu_()));
    return y.add_(downsample.is_empty() ? x : downsample->forward(x)).relu_();
  }

  bool bottleneck_;
  nn::Conv2d conv1{nullptr}, conv2{nullptr}, conv3{nullptr};
  nn::BatchNorm2d bn1{nullptr}, bn2{nullptr}, bn3{nullptr};
  nn::Sequential downsample{nullptr};
};
TORCH_MODULE(Block);

struct Spec {
  std::vector<int> blocks;
  int width;
  bool bottleneck, imagenet;
  int image, classes;
};

Spec spec_of(const std::string& model) {
  if (model == "resnet20") return {{3, 3, 3}, 16, false, false, 32, 10};
  if (model == "resnet18") return {{2, 2, 2, 2}, 64, false, false, 32, 10};
  if (model == "resnet50") return {{3, 4, 6, 3}, 64, true, true, 224, 1000};
  throw std::invalid_argument("--model: resnet20, resnet18 or resnet50, not " + model);
}

struct ResNetImpl : nn::Module {
  explicit ResNetImpl(const Spec& s) : imagenet(s.imagenet) {
    conv1 = register_module("conv1", s.imagenet ? conv(3, s.width, 7, 2) : conv(3, s.width, 3, 1));
    bn1 = register_module("bn1", nn::BatchNorm2d(s.width));
    int in = s.width;
    for (std::size_t stage = 0; stage < s.blocks.size(); ++stage)
      for (int i = 0; i < s.blocks[stage]; ++i) {
        const int width = s.width << stage;
        blocks->push_back(Block(in, width, stage > 0 && i == 0 ? 2 : 1, s.bottleneck));
        in = s.bottleneck ? 4 * width : width;
      }
    register_module("blocks", blocks);
    fc = register_module("fc", nn::Linear(in, s.classes));
  }

  Tensor forward(Tensor x) {
    x = bn1(conv1(x)).relu_();
    if (imagenet) x = torch::max_pool2d(x, 3, 2, 1);
    x = blocks->forward(x);
    return fc(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }

  bool imagenet;
  nn::Conv2d conv1{nullptr};
  nn::BatchNorm2d bn1{nullptr};
  nn::Sequential blocks;
  nn::Linear fc{nullptr};
};
TORCH_MODULE(ResNet);

struct Args {
  std::string model = "resnet20", precision = "f32", bf16_mode = "copy";
  int batch = 128, threads = 0;
  double seconds = 5;
};

Args parse(int argc, char** argv) {
  Args a;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc) throw std::invalid_argument("a value is missing after " + flag);
    const std::string value = argv[i + 1];
    if (flag == "--model")
      a.model = value;
    else if (flag == "--precision")
      a.precision = value;
    else if (flag == "--bf16-mode")
      a.bf16_mode = value;
    else if (flag == "--batch")
      a.batch = std::stoi(value);
    else if (flag == "--threads")
      a.threads = std::stoi(value);
    else if (flag == "--seconds")
      a.seconds = std::stod(value);
    else
      throw std::invalid_argument("--model --batch --precision --bf16-mode --threads --seconds, not " + flag);
  }
  if (a.precision != "f32" && a.precision != "bf16")
    throw std::invalid_argument("--precision: f32 or bf16, not " + a.precision);
  if (a.bf16_mode != "autocast" && a.bf16_mode != "copy")
    throw std::invalid_argument("--bf16-mode: autocast or copy, not " + a.bf16_mode);
  return a;
}

void channels_last(nn::Module& m) {
  torch::NoGradGuard guard;
  for (Tensor& p : m.parameters())
    if (p.dim() == 4) p.set_data(p.contiguous(at::MemoryFormat::ChannelsLast));
}

// One training step. Both ways to compute in bf16 keep f32 weights and an f32 momentum: "autocast" casts the weights
// of each convolution when it runs; "copy" keeps a bf16 copy of them that is refreshed after the update.
class Step {
 public:
  Step(const Args& a, const Spec& s)
      : autocast_(a.precision == "bf16" && a.bf16_mode == "autocast"),
        copy_(a.precision == "bf16" && a.bf16_mode == "copy"),
        model_(s),
        images_(torch::randn({a.batch, 3, s.image, s.image}).contiguous(at::MemoryFormat::ChannelsLast)),
        labels_(torch::randint(0, s.classes, {a.batch}, torch::kInt64)) {
    channels_last(*model_);
    model_->train();
    if (copy_) {
      for (Tensor& p : model_->parameters()) {
        if (p.dim() < 2) continue;  // batch norm and biases stay f32
        masters_.push_back(p.detach().clone(at::MemoryFormat::Preserve).requires_grad_());
        copies_.push_back(p);
        p.set_data(p.to(torch::kBFloat16));
      }
      model_->fc->bias.set_data(model_->fc->bias.to(torch::kBFloat16));
    }
    std::vector<Tensor> updated = masters_;
    for (Tensor& p : model_->parameters())
      if (!copy_ || p.dim() < 2) updated.push_back(p);
    sgd_ =
        std::make_unique<torch::optim::SGD>(updated, torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(1e-4));
  }

  void operator()() {
    if (autocast_) {
      at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
      at::autocast::set_cpu_enabled(true);
    }
    Tensor loss =
        torch::cross_entropy_loss(model_(copy_ ? images_.to(torch::kBFloat16) : images_).to(torch::kFloat), labels_);
    if (autocast_) {
      at::autocast::set_cpu_enabled(false);
      at::autocast::clear_cache();  // or the casts of the old weights would be used again
    }
    loss.backward();
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      masters_[i].mutable_grad() = copies_[i].grad().to(torch::kFloat);
      copies_[i].mutable_grad().reset();
    }
    sgd_->step();
    sgd_->zero_grad();
    torch::NoGradGuard guard;
    for (std::size_t i = 0; i < copies_.size(); ++i) copies_[i].copy_(masters_[i]);
    loss_ = loss.item<float>();
  }

  float loss() const { return loss_; }

 private:
  bool autocast_, copy_;
  ResNet model_;
  Tensor images_, labels_;
  std::vector<Tensor> masters_, copies_;
  std::unique_ptr<torch::optim::SGD> sgd_;
  float loss_ = 0;
};

// Of this process, system time included.
double cpu_seconds() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}
double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void run(const Args& a) {
  if (a.threads > 0) at::set_num_threads(a.threads);
  at::set_num_interop_threads(1);
  torch::manual_seed(1);
  Step step(a, spec_of(a.model));
  for (int i = 0; i < 3; ++i) step();

  std::vector<double> windows;
  int all = 0;
  const double cpu_start = cpu_seconds();
  const double start = now();
  while (now() - start < a.seconds || windows.empty()) {
    const double begin = now();
    int steps = 0;
    while (steps == 0 || now() - begin < std::min(0.5, a.seconds / 5)) step(), ++steps;
    all += steps;
    windows.push_back(steps * a.batch / (now() - begin));
  }
  const double per_cpu_second = all * a.batch / (cpu_seconds() - cpu_start);
  std::nth_element(windows.begin(), windows.begin() + static_cast<std::ptrdiff_t>(windows.size() / 2), windows.end());
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::fprintf(stderr, "libtorch: loss %.4f, %zu windows%s\n", step.loss(), windows.size(),
               a.precision == "bf16" ? (", bf16 by " + a.bf16_mode).c_str() : "");
  std::printf(
      "{\"system\":\"libtorch %s\",\"model\":\"%s\",\"precision\":\"%s\",\"batch\":%d,\"threads\":%d,"
      "\"images_per_second\":%.1f,\"images_per_cpu_second\":%.1f,\"peak_rss_mib\":%.1f}\n",
      LIBTORCH_VERSION, a.model.c_str(), a.precision.c_str(), a.batch, at::get_num_threads(),
      windows[windows.size() / 2], per_cpu_second, static_cast<double>(usage.ru_maxrss) / 1024);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
    return 0;
  } catch (const std::invalid_argument& e) {
    std::fprintf(stderr, "torch_resnet: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "torch_resnet: %s\n", e.what());
    return 1;
  }
}
