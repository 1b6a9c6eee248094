// SPDX-License-Identifier: MIT
// Reads any bytes as the audit files of a run: a zero byte separates the files. The result of each epoch is possible,
// or DataError in plain characters names a file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/audit.hpp>
#include <tutti/data/check_audit.hpp>

#include "memory_file.hpp"

namespace fuzz::audit {

int run(const std::uint8_t* data, std::size_t size) {
  using namespace tutti;
  constexpr std::int64_t samples = 6;
  std::deque<test::MemoryFile> files;
  std::vector<std::string> paths;
  for (std::span rest(data, size); files.size() < 4;) {
    const auto end = std::find(rest.begin(), rest.end(), 0);
    paths.push_back(files.emplace_back(rest.first(static_cast<std::size_t>(end - rest.begin()))).path());
    if (latest_audited_generation(paths.back()) < 0) std::abort();
    if (end == rest.end()) break;
    rest = rest.subspan(static_cast<std::size_t>(end - rest.begin()) + 1);
  }
  try {
    const Audit all(paths, samples);
    for (const std::int64_t epoch : all.epochs()) {
      const AuditResult r = all.result(epoch);
      if (r.lines < 1 || r.missing < 0 || r.missing > samples || r.repeated < 0) std::abort();
      if (r.exactly_once() != r.examples.empty() || (r.repeated > 0) == r.where.empty()) std::abort();
      for (const std::int64_t i : r.examples)
        if (i < 0 || i >= samples) std::abort();
    }
  } catch (const DataError& e) {
    const std::string_view text = e.what();
    if (text.find("/proc/self/fd/") == text.npos) std::abort();
    if (std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7f; })) std::abort();
  }
  return 0;
}

}  // namespace fuzz::audit
