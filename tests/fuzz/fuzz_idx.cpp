// SPDX-License-Identifier: MIT
// Reads any bytes as an IDX file. The result is either DataError or exactly the contents that its header describes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include <tutti/datasets/fashion_mnist/fashion_mnist.hpp>
#include <tutti/datasets/fashion_mnist/idx.hpp>

namespace fuzz::idx {

std::vector<std::uint8_t> idx(std::uint32_t n, std::size_t rank, std::size_t bytes_each) {
  std::vector<std::uint8_t> f{0, 0, 8, static_cast<std::uint8_t>(rank)};
  for (std::size_t i = 0; i < rank; ++i)
    for (const int shift : {24, 16, 8, 0}) f.push_back(static_cast<std::uint8_t>((i == 0 ? n : 28) >> shift));
  f.resize(f.size() + n * bytes_each);
  return f;
}

void parse(std::span<const std::uint8_t> file) {
  for (const std::size_t rank : {1, 2, 3}) try {
      const auto view = tutti::parse_idx(file, rank, "fuzz");
      std::size_t bytes = 1;
      for (const auto e : view.extents) bytes *= static_cast<std::size_t>(e);
      if (view.extents.size() != rank || view.data.size() != bytes || bytes + 4 + 4 * rank != file.size()) std::abort();
    } catch (const tutti::DataError&) {
    }
  // Uses the input as images together with valid labels, and as labels together with valid images.
  static const auto images = idx(2, 3, 784), labels = idx(2, 1, 1);
  for (const auto& [i, l] :
       {std::pair{file, std::span<const std::uint8_t>(labels)}, std::pair{std::span<const std::uint8_t>(images), file}})
    try {
      const auto set = tutti::fashion_mnist::parse(i, "fuzz", l, "fuzz", tutti::Split::train, false);
      if (set.size() != 2 || set.label(1) < 0 || set.label(1) > 9) std::abort();
    } catch (const tutti::DataError&) {
    }
}

int run(const std::uint8_t* data, std::size_t size) {
  parse({data, size});
  return 0;
}

}  // namespace fuzz::idx
