// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/io/checkpoint/checkpoint.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/io/safetensors/tensor_record.hpp>
#include <tutti/strategy/parameter_server/server/server_state.hpp>

namespace tutti {

// The stored states of a server of asynchronous training, from which a restarted server with the same number continues.
// The two newest ones are kept, as checkpoints (io/checkpoint/checkpoint.hpp) in a separate folder. They belong to one
// job: the workers of another job bring their own weights.
class ServerSnapshots {
 public:
  using Log = std::function<void(const std::string&)>;
  ServerSnapshots(const io::Path& folder, std::string job, Log log)
      : folder_(folder), store_(folder), job_(std::move(job)), log_(std::move(log)) {}
  ~ServerSnapshots() { wait(); }
  ServerSnapshots(const ServerSnapshots&) = delete;
  ServerSnapshots& operator=(const ServerSnapshots&) = delete;

  // Returns the newest complete state of this job. Logs the reason for each state that it skips.
  [[nodiscard]] std::optional<ps::ServerState> newest() {
    for (const io::Path& path : store_.list()) {
      try {
        const io::LoadedCheckpoint c = store_.load(path);
        if (c.options().at("job").as_string() != job_) continue;
        ps::ServerState state = state_of(c);
        begun_ = true;
        written_ = state.steps;
        return state;
      } catch (const DataError& e) {
        say(path.string() + " is not used: " + e.what());
      }
    }
    return std::nullopt;
  }

  // Writes the state in a separate thread. Drops states that arrive during a write, and a state that is stored already.
  // Errors are logged, and earlier snapshots stay.
  void write(ps::ServerState&& state) {
    if (state.steps == written_ || !idle()) return;
    wait();
    written_ = state.steps;
    set_busy(true);
    thread_ = std::thread([this, s = std::move(state)] {
      try {
        // Removes states of other jobs: they would count as older or newer states of this job.
        if (!begun_) io::remove_tree(folder_);
        begun_ = true;
        save(s);
      } catch (const std::exception& e) {
        say(std::string("the state of a server was not saved: ") + e.what());
      }
      set_busy(false);
    });
  }
  void wait() {
    if (thread_.joinable()) thread_.join();
  }
  // Call it at the end of a job, when the job's checkpoint has the whole state. The last server also removes the parent
  // folder.
  void remove() {
    wait();
    io::remove_tree(folder_);
    std::error_code not_empty;
    std::filesystem::remove(folder_.parent_path(), not_empty);
  }

 private:
  void say(const std::string& line) const {
    if (log_) log_(line);
  }
  [[nodiscard]] bool idle() {
    const std::lock_guard lock(mutex_);
    return !busy_;
  }
  void set_busy(bool busy) {
    const std::lock_guard lock(mutex_);
    busy_ = busy;
  }

  void save(const ps::ServerState& s) {
    io::CheckpointData data;
    data.step = s.steps;
    data.options = io::Json::object({{"job", job_}});
    io::Json::Array workers;
    for (const ps::ServerState::Worker& w : s.workers) {
      io::Json::Array done;
      for (const auto& [round, offset] : w.done)
        done.push_back(io::Json::object({{"round", std::to_string(round)}, {"offset", std::to_string(offset)}}));
      workers.push_back(io::Json::object({{"session", std::to_string(w.session)},
                                          {"its_step", std::to_string(w.its_step)},
                                          {"step", w.step},
                                          {"clock", w.clock},
                                          {"first_clock", w.first_clock},
                                          {"origin", w.origin},
                                          {"done", io::Json(std::move(done))}}));
    }
    data.counters = io::Json::object({{"workers", io::Json(std::move(workers))}});
    for (const ps::ServerState::Piece& p : s.pieces)
      data.model.push_back({"arena " + std::to_string(p.arena) + " from " + std::to_string(p.begin), DType::u8,
                            Shape{static_cast<std::int64_t>(p.bytes.size())}, p.bytes});
    store_.save(data);
  }
  [[nodiscard]] static std::uint64_t number(std::string_view text, const std::string& where) {
    std::uint64_t n = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error != std::errc() || end != text.data() + text.size()) fail<DataError>(where, "a number", {"'", text, "'"});
    return n;
  }
  // Returns 0 if the member is missing: states of earlier builds have neither first clocks nor origins.
  [[nodiscard]] static std::int64_t integer_or_zero(const io::Json& w, std::string_view key, const std::string& where) {
    const io::Json* const found = w.find(key);
    return found == nullptr ? 0 : found->as_integer(where);
  }
  [[nodiscard]] static ps::ServerState state_of(const io::LoadedCheckpoint& c) {
    const std::string where = c.path().string();
    ps::ServerState s;
    s.steps = c.step();
    for (const io::Json& w : c.counters().at("workers", where).as_array(where)) {
      ps::ServerState::Worker worker;
      worker.session = number(w.at("session", where).as_string(where), where);
      worker.its_step = number(w.at("its_step", where).as_string(where), where);
      worker.step = w.at("step", where).as_integer(where);
      worker.clock = w.at("clock", where).as_integer(where);
      worker.first_clock = integer_or_zero(w, "first_clock", where);
      worker.origin = integer_or_zero(w, "origin", where);
      for (const io::Json& d : w.at("done", where).as_array(where))
        worker.done.emplace_back(number(d.at("round", where).as_string(where), where),
                                 number(d.at("offset", where).as_string(where), where));
      s.workers.push_back(std::move(worker));
    }
    for (const io::TensorRecord& r : c.model()) {
      constexpr std::string_view first = "arena ", second = " from ";
      const std::string_view name = r.name;
      const std::size_t middle = name.find(second);
      if (!name.starts_with(first) || middle == name.npos)
        fail<DataError>(where, "the name of a server's arena", r.name);
      const std::uint64_t arena = number(name.substr(first.size(), middle - first.size()), where);
      s.pieces.push_back({static_cast<std::uint32_t>(arena),
                          number(name.substr(middle + second.size()), where),
                          {r.bytes.begin(), r.bytes.end()}});
    }
    return s;
  }

  io::Path folder_;
  io::CheckpointStore store_;
  std::string job_;
  Log log_;
  std::mutex mutex_;
  bool busy_ = false;
  bool begun_ = false;  // the thread uses it, and before the thread's start this one
  std::int64_t written_ = -1;
  std::thread thread_;
};

}  // namespace tutti
