// SPDX-License-Identifier: MIT
// Reads any bytes as the choices of kernels that another rank sends. The result is either choices, which are written
// and taken again without a change, or DataError and no change.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/backends/cuda/cudnn/kernel_choices.hpp>
#include <tutti/core/error.hpp>

namespace fuzz::kernel_choices {

int run(const std::uint8_t* data, std::size_t size) {
  using namespace tutti;
  constexpr std::string_view device = "GPU", conv = "conv", stem = "stem";
  const std::vector<char> exact(data, data + size);
  cuda::KernelChoices mine;
  mine.record(std::string(conv), {true, "plan 1"});
  mine.record(std::string(stem), {false, ""});
  const std::string before = mine.text(device);
  try {
    const auto taken = mine.take(device, std::string_view(exact.data(), exact.size()));
    if (taken.other_device && (taken.changed != 0 || mine.text(device) != before)) std::abort();
    if (taken.changed > 2 || (!mine.must_guess(std::string(conv)) && mine.find(std::string(conv)) == nullptr))
      std::abort();
    // What all ranks have after the exchange remains as it is.
    const std::string after = mine.text(device);
    if (after.empty()) return 0;  // all ranks guess
    if (const auto again = mine.take(device, after); again.other_device || mine.text(device).size() > after.size())
      std::abort();
  } catch (const DataError&) {
    if (mine.text(device) != before || mine.find(std::string(conv)) != nullptr) std::abort();
  }
  return 0;
}

}  // namespace fuzz::kernel_choices
