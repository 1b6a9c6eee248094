// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <tutti/comm/communicator.hpp>
#include <tutti/core/rng.hpp>

// The requirements for all communicators, as one list of cases. All ranks call run() of the same case, each with its
// communicator. A case throws if the communicator is wrong. The cases need no test framework, because ranks may be
// processes.
namespace tutti::conformance {

inline void require(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

constexpr std::chrono::seconds patience{60};

// Returns the value of rank r for element i: whole numbers, so that sums are exact in each type.
inline int value_of(int r, std::size_t i) {
  return static_cast<int>((i * 7 + static_cast<std::size_t>(r) * 13) % 11) - 3;
}

template <class T>
std::vector<T> values(int rank, std::size_t n) {
  std::vector<T> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<T>(static_cast<float>(value_of(rank, i)));
  return v;
}

template <class T>
void expect(const std::vector<T>& got, std::size_t begin, std::size_t end, int size, ReduceOp op,
            const std::string& what) {
  for (std::size_t i = begin; i < end; ++i) {
    int want = value_of(0, i);
    for (int r = 1; r < size; ++r) want = op == ReduceOp::sum ? want + value_of(r, i) : std::max(want, value_of(r, i));
    if (static_cast<double>(got[i]) != want)
      require(false, what + ": element " + std::to_string(i) + " of " + std::to_string(got.size()) + " is " +
                         std::to_string(static_cast<double>(got[i])) + ", not " + std::to_string(want));
  }
}

template <class T>
std::span<std::byte> bytes_of(std::vector<T>& v) {
  return std::as_writable_bytes(std::span(v));
}

// Sizes around the limits of the data paths: empty, less than a cache line, a small message and one element more, and
// several pieces of scratch memory plus a rest.
inline const std::vector<std::size_t> counts{0, 1, 3, 17, 1000, 4096, 4097, 8193, 100'003, 300'007};

template <Communicator C, class T>
void all_reduce_of(C& c, const std::string& type) {
  for (const auto op : {ReduceOp::sum, ReduceOp::max})
    for (const std::size_t n : counts) {
      auto v = values<T>(c.rank(), n);
      c.all_reduce(dtype_of<T>, bytes_of(v), op, "all_reduce " + type).wait();
      expect(v, 0, n, c.size(), op, "all_reduce " + type);
    }
}

template <Communicator C>
struct Case {
  std::string name;
  std::function<void(C&)> run;
};

template <Communicator C>
std::vector<Case<C>> cases() {
  std::vector<Case<C>> list;
  list.push_back({"rank and size", [](C& c) {
                    require(c.size() >= 1 && c.rank() >= 0 && c.rank() < c.size(), "rank outside 0..size-1");
                    require(!c.name().empty() && !c.rank_name(0).empty(), "a name is empty");
                  }});
  list.push_back({"all_reduce of every type and size", [](C& c) {
                    all_reduce_of<C, float>(c, "f32");
                    all_reduce_of<C, double>(c, "f64");
                    all_reduce_of<C, bf16>(c, "bf16");
                    all_reduce_of<C, std::int32_t>(c, "i32");
                    all_reduce_of<C, std::int64_t>(c, "i64");
                  }});
  list.push_back({"all_reduce gives all ranks the same bits", [](C& c) {
                    for (const std::size_t n : {std::size_t{100}, std::size_t{70'001}}) {
                      Rng rng(5, Purpose::user, 0, static_cast<std::uint64_t>(c.rank()));
                      std::vector<float> v(n);
                      for (float& x : v) x = static_cast<float>(rng.normal());
                      c.all_reduce(DType::f32, bytes_of(v), ReduceOp::sum, "bits").wait();
                      std::vector<float> all(n * static_cast<std::size_t>(c.size()));
                      c.all_gather(std::as_bytes(std::span(v)), bytes_of(all), "bits").wait();
                      for (int r = 0; r < c.size(); ++r)
                        require(std::memcmp(all.data() + static_cast<std::size_t>(r) * n, v.data(), n * 4) == 0,
                                "rank " + std::to_string(r) + " has other bits");
                    }
                  }});
  list.push_back(
      {"all_reduce in memory of its own", [](C& c) {
         const std::size_t n = 300'000;
         const auto own = c.allocate(n * sizeof(float));
         if (own.empty()) return;
         require(own.size() >= n * sizeof(float), "too little memory");
         float* v = reinterpret_cast<float*>(own.data());
         for (std::size_t i = 0; i < n; ++i)
           if (v[i] != 0) require(false, "memory is not zero");
         c.barrier(patience);
         // The whole buffer, and slices at odd positions.
         for (const auto& [begin, end] : {std::pair<std::size_t, std::size_t>{0, n}, {16, 272}, {1600, 250'016}}) {
           const auto mine = values<float>(c.rank(), end - begin);
           std::memcpy(v + begin, mine.data(), mine.size() * sizeof(float));
           c.all_reduce(DType::f32, own.subspan(begin * 4, (end - begin) * 4), ReduceOp::sum, "own").wait();
           expect(std::vector<float>(v + begin, v + end), 0, end - begin, c.size(), ReduceOp::sum, "own");
         }
       }});
  list.push_back({"a NaN is not lost", [](C& c) {
                    for (const auto op : {ReduceOp::sum, ReduceOp::max}) {
                      std::vector<float> v(40, 1.F);
                      if (c.rank() == c.size() - 1) v[7] = std::nanf("");
                      c.all_reduce(DType::f32, bytes_of(v), op, "nan").wait();
                      require(std::isnan(v[7]) && !std::isnan(v[8]), "the NaN is not where it was");
                    }
                  }});
  list.push_back({"broadcast from every rank", [](C& c) {
                    for (int root = 0; root < c.size(); ++root)
                      for (const std::size_t n : counts) {
                        auto v = values<std::int32_t>(c.rank(), n);
                        c.broadcast(bytes_of(v), root, "broadcast").wait();
                        require(v == values<std::int32_t>(root, n), "not the root's data, " + std::to_string(n));
                      }
                  }});
  list.push_back({"all_gather", [](C& c) {
                    for (const std::size_t n : counts) {
                      const auto v = values<std::int32_t>(c.rank(), n);
                      std::vector<std::int32_t> all(n * static_cast<std::size_t>(c.size()), -99);
                      c.all_gather(std::as_bytes(std::span(v)), bytes_of(all), "all_gather").wait();
                      for (int r = 0; r < c.size(); ++r) {
                        const auto want = values<std::int32_t>(r, n);
                        require(n == 0 ||
                                    std::memcmp(all.data() + static_cast<std::size_t>(r) * n, want.data(), n * 4) == 0,
                                "not what rank " + std::to_string(r) + " brought, " + std::to_string(n));
                      }
                    }
                  }});
  list.push_back({"several in flight", [](C& c) {
                    std::vector<std::vector<float>> v;
                    for (std::size_t i = 0; i < 20; ++i) v.push_back(values<float>(c.rank(), 1 + i * 3000));
                    std::vector<Work> works;
                    for (auto& x : v) works.push_back(c.all_reduce(DType::f32, bytes_of(x), ReduceOp::sum, "flight"));
                    // Waits in another order must work.
                    for (std::size_t i = works.size(); i-- > 0;) works[i].wait();
                    for (auto& x : v) expect(x, 0, x.size(), c.size(), ReduceOp::sum, "flight");
                    for (auto& w : works) require(w.done() && w.name() == "flight", "done, with its name");
                  }});
  list.push_back({"many small ones back to back", [](C& c) {
                    for (int i = 0; i < 500; ++i) {
                      double v[2] = {static_cast<double>(c.rank()), static_cast<double>(i)};
                      c.all_reduce(DType::f64, std::as_writable_bytes(std::span(v)), ReduceOp::sum, "small").wait();
                      require(v[0] == c.size() * (c.size() - 1) / 2.0 && v[1] == i * c.size(),
                              "sum " + std::to_string(i));
                    }
                  }});
  list.push_back({"barrier", [](C& c) {
                    for (int i = 0; i < 50; ++i) c.barrier(patience);
                  }});
  list.push_back({"room of a wrong size is refused", [](C& c) {
                    std::vector<std::int32_t> mine(4), all(4 * static_cast<std::size_t>(c.size()) + 1);
                    bool refused = false;
                    try {
                      c.all_gather(std::as_bytes(std::span(mine)), bytes_of(all), "x").wait();
                    } catch (const UsageError&) {
                      refused = true;
                    }
                    require(refused, "all_gather took it");
                  }});
  return list;
}

}  // namespace tutti::conformance
