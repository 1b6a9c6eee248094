// SPDX-License-Identifier: MIT
#include "tools/launch/host/wire.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>

namespace tutti::launch {

namespace {

class FrameWriter {
 public:
  void put(std::string_view text) { bytes_.append(std::to_string(text.size())).append(":").append(text).append(","); }
  void put(std::int64_t number) { put(std::string_view(std::to_string(number))); }
  [[nodiscard]] std::string frame() const { return "TUTTI-LAUNCH " + std::to_string(bytes_.size()) + "\n" + bytes_; }

 private:
  std::string bytes_;
};

// Reads what FrameWriter wrote. Throws CommunicationError for other bytes.
class FrameReader {
 public:
  explicit FrameReader(std::string_view payload) : rest_(payload) {}

  [[nodiscard]] std::string text() {
    std::size_t size = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), size);
    const auto digits = static_cast<std::size_t>(end - rest_.data());
    if (error != std::errc{} || digits >= rest_.size() || rest_[digits] != ':') broken();
    rest_.remove_prefix(digits + 1);
    if (size >= rest_.size() || rest_[size] != ',') broken();
    std::string out(rest_.substr(0, size));
    rest_.remove_prefix(size + 1);
    return out;
  }
  [[nodiscard]] int number(int low = 0, int high = std::numeric_limits<int>::max()) {
    const std::string word = text();
    int value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc{} || end != word.data() + word.size() || value < low || value > high) broken();
    return value;
  }
  void expect_end() const {
    if (!rest_.empty()) broken();
  }

 private:
  [[noreturn]] static void broken() {
    fail<CommunicationError>("order", "an order from the launcher", "something else",
                             "install the same version of tutti on both hosts");
  }
  std::string_view rest_;
};

}  // namespace

std::string encode(const Order& o) {
  FrameWriter w;
  w.put(std::int64_t{protocol});
  for (const std::string* text :
       {&o.job, &o.job_name, &o.host, &o.folder, &o.log_dir, &o.root_host, &o.secret, &o.kept})
    w.put(*text);
  for (const int number : {o.root_port, o.root_ports, o.ps_port, o.workers, o.servers, o.through_mpi ? 1 : 0,
                           o.keeps ? 1 : 0, o.elastic ? 1 : 0, o.joins ? 1 : 0, o.epoch, o.generation, o.founders})
    w.put(std::int64_t{number});
  w.put(static_cast<std::int64_t>(o.host_timeout * 1000));
  w.put(static_cast<std::int64_t>(o.command.size()));
  for (const auto& word : o.command) w.put(word);
  for (const Variables* variables : {&o.everywhere, &o.on_workers, &o.on_servers}) {
    w.put(static_cast<std::int64_t>(variables->size()));
    for (const auto& [name, value] : *variables) {
      w.put(name);
      w.put(value);
    }
  }
  w.put(static_cast<std::int64_t>(o.processes.size()));
  for (const ProcessOrder& p : o.processes) {
    w.put(p.role);
    for (const int number : {p.rank, p.local_rank, p.local_size, p.mpi_rank}) w.put(std::int64_t{number});
  }
  return w.frame();
}

Order decode(std::string_view payload) {
  FrameReader r(payload);
  Order o;
  if (r.number() != protocol)
    fail<CommunicationError>("order", "protocol " + std::to_string(protocol), "another",
                             "install the same version of tutti on both hosts");
  for (std::string* text : {&o.job, &o.job_name, &o.host, &o.folder, &o.log_dir, &o.root_host, &o.secret, &o.kept})
    *text = r.text();
  for (int* number : {&o.root_port, &o.root_ports, &o.ps_port, &o.workers, &o.servers}) *number = r.number();
  o.through_mpi = r.number(0, 1) == 1;
  for (bool* flag : {&o.keeps, &o.elastic, &o.joins}) *flag = r.number(0, 1) == 1;
  for (int* number : {&o.epoch, &o.generation, &o.founders}) *number = r.number();
  o.host_timeout = r.number(1) / 1000.0;
  const int words = r.number();
  for (int i = 0; i < words; ++i) o.command.push_back(r.text());
  for (Variables* variables : {&o.everywhere, &o.on_workers, &o.on_servers}) {
    const int count = r.number();
    for (int i = 0; i < count; ++i) {
      std::string name = r.text();
      variables->emplace_back(std::move(name), r.text());
    }
  }
  const int count = r.number();
  for (int i = 0; i < count; ++i) {
    ProcessOrder p;
    p.role = r.text();
    for (int* number : {&p.rank, &p.local_rank, &p.local_size, &p.mpi_rank}) *number = r.number();
    o.processes.push_back(std::move(p));
  }
  r.expect_end();
  return o;
}

std::size_t frame_length(std::string_view line) {
  constexpr std::string_view start = "TUTTI-LAUNCH ";
  std::size_t size = 0;
  const bool right = line.starts_with(start);
  const std::string_view digits = right ? line.substr(start.size()) : line;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
  if (!right || error != std::errc{} || end != digits.data() + digits.size() || size > max_frame)
    fail<CommunicationError>("order", "a line with TUTTI-LAUNCH and a length", "something else",
                             "do not call this mode: tutti-launch uses it internally");
  return size;
}

std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  for (std::size_t at = line.find_first_not_of(' '); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find(' ', at), line.size());
    words.emplace_back(line.substr(at, end - at));
    at = line.find_first_not_of(' ', end);
  }
  return words;
}

}  // namespace tutti::launch
