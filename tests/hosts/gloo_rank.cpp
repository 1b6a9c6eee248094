// SPDX-License-Identifier: MIT
// A rank over Gloo for tests of the wire: sums numbers whose bytes are a text that a test finds in a recording of the
// network, unless the connections are encrypted.
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <tutti/backends/make/strategy.hpp>
#include <tutti/core/error.hpp>

int main() {
  using namespace tutti;
  try {
    AnyStrategy strategy = make_strategy("gloo");
    constexpr std::size_t n = 30'000;
    const std::string text = "gradient of conv1.weight";  // the bytes of three numbers
    std::vector<double> values(n);
    // The sum with zeros has the same bytes.
    for (std::size_t i = 0; strategy.rank() == 0 && i < n; i += 3) std::memcpy(&values[i], text.data(), text.size());
    strategy.sum(values);
    if (std::memcmp(&values[n - 3], text.data(), text.size()) != 0) return 1;
    if (strategy.rank() == 0) std::printf("%s\n", strategy.name().c_str());
    strategy.finish();
    return 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "gloo_rank: %s\n", e.what());
    return e.exit_code();
  }
}
