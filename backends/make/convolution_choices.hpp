// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/engine/cpu/cpu_ops.hpp>
#include <tutti/io/cache_folder.hpp>
#include <tutti/io/text_store.hpp>
#include <tutti/version.hpp>

namespace tutti::detail {

// Stores and reports the choices of `--convolution tune`. Each choice is a file in the user's cache. Its key contains
// the processor and the version of tutti.
class ConvolutionChoices final : public cpu::TunedChoices {
 public:
  using Say = std::function<void(const std::string&)>;

  explicit ConvolutionChoices(Say say)
      : store_(io::cache_folder("convolution"), "tutti convolution choice 1", ".choice"), say_(std::move(say)) {}

  [[nodiscard]] std::optional<cpu::ConvolutionAlgorithm> find(const std::string& key) override {
    const std::string here = full(key);
    if (const auto text = store_.load(here)) {
      for (const auto a : {cpu::ConvolutionAlgorithm::direct, cpu::ConvolutionAlgorithm::winograd})
        if (*text == word(a)) {
          say("convolution tune: " + key + ": " + *text + ", chosen in an earlier run");
          return a;
        }
    }
    if (store_.has_file(here))
      say("convolution tune: " + store_.file_of(here).string() +
          " is damaged or belongs to another convolution, processor or version: measured again");
    return std::nullopt;
  }

  void chose(const std::string& key, cpu::ConvolutionAlgorithm a, double direct_ms, double winograd_ms) override {
    char times[80];
    std::snprintf(times, sizeof times, " (direct %.3f ms, winograd %.3f ms)", direct_ms, winograd_ms);
    const bool kept = store_.save(full(key), word(a));
    say("convolution tune: " + key + ": " + word(a) + times + (kept ? "" : ", not stored"));
  }

 private:
  [[nodiscard]] static std::string word(cpu::ConvolutionAlgorithm a) {
    return a == cpu::ConvolutionAlgorithm::winograd ? "winograd" : "direct";
  }
  // Returns the name of the processor, as in /proc/cpuinfo.
  [[nodiscard]] static std::string processor() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);)
      if (line.starts_with("model name")) return line.substr(line.find(':') + 1);
    return " unknown";
  }
  [[nodiscard]] std::string full(const std::string& key) const {
    return key + " |" + processor_ + " | tutti " + version;
  }
  void say(const std::string& line) const {
    if (say_) say_(line);
  }

  io::TextStore store_;
  Say say_;
  std::string processor_ = processor();
};

}  // namespace tutti::detail
