// SPDX-License-Identifier: MIT
#include "tools/report/read_log.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/train/run_log.hpp>
#include <tutti/version.hpp>

#include "tools/report/lines.hpp"

namespace tutti::report_tool {

void LogReader::read(const io::Path& path) {
  where_ = path.string();
  for_each_line(path, most_of_line, [&](std::string_view text, std::int64_t number, bool whole) {
    try {
      line(io::parse_json(text, where_ + " line " + std::to_string(number)));
    } catch (const DataError& e) {
      if (!whole && text.size() < most_of_line) {
        run_.notes.push_back("the last line of " + where_ +
                             " is incomplete: the run is writing it, or the disk is full");
        return;
      }
      if (++bad_ == 1) first_bad_ = e.what();
    }
  });
  if (bad_ > 0)
    run_.problems.push_back(std::to_string(bad_) + (bad_ == 1 ? " line of " : " lines of ") + where_ +
                            " cannot be read and " + (bad_ == 1 ? "is" : "are") + " ignored: " + first_bad_);
  if (unknown_ > 0)
    run_.notes.push_back(std::to_string(unknown_) + " events of " + where_ + " are of a type that tutti-report " +
                         version + " does not know, such as '" + printable(first_unknown_) + "'");
}

double LogReader::number(const io::Json& line, std::string_view name) {
  const io::Json* v = line.find(name);
  return v == nullptr || v->is_null() ? none : v->as_double(name);
}

io::Json LogReader::plain(const io::Json& v, bool members) {
  constexpr std::size_t most = 1000;
  if (members && v.kind() == "an object") {
    io::Json::Object all;
    for (const auto& [key, value] : v.as_object()) all.emplace_back(key, plain(value, false));
    return all;
  }
  const bool simple = v.is_null() || v.is_bool() || v.is_integer() || v.is_double();
  if (simple || (v.is_string() && v.as_string().size() <= most)) return v;
  const std::string whole = v.is_string() ? v.as_string() : io::write_json(v);
  return whole.size() <= most ? whole : utf8_text(whole.substr(0, most)) + " ...";
}

double LogReader::step_of(const io::Json& line) {
  const double step = line.at("step", "a line of the log").as_double("step");
  if (!(step >= 0 && step < 1e15)) fail<DataError>("step", "a number of 0 or more", std::to_string(step));
  return step;
}

std::string LogReader::text(const io::Json& line, std::string_view name) {
  const io::Json* v = line.find(name);
  return v != nullptr && v->is_string() ? v->as_string() : "";
}

void LogReader::line(const io::Json& l) {
  const std::string event = l.at("event", "a line of the log").as_string("event");
  // Ignores lines of a process that belongs to an earlier generation: it had been removed from the job.
  if (const io::Json* g = l.find("generation"); g != nullptr && event != "start") {
    const std::int64_t generation = g->as_integer("generation");
    if (generation < generation_) return;
    generation_ = generation;
  }
  if (event == "start") return start(l);
  if (event == "resume") return resume(l);
  if (std::exchange(anew_, false)) begin_anew();
  if (event == "step")
    step(l);
  else if (event == "epoch")
    epoch(l);
  else if (event == "members")
    members(l);
  else if (event == "shares")
    shares(l);
  else if (event == "warning")
    warning(text(l, "message"));
  else if (event == "views")
    run_.views = plain(l, true);
  else if (event == "end")
    end(l);
  else if (++unknown_ == 1)
    first_unknown_ = event;
}

void LogReader::start(const io::Json& l) {
  run_.facts = io::Json::object();
  for (const auto& [key, value] : l.as_object())
    if (key == "options")
      run_.options = plain(value, true);
    else if (key != "event")
      run_.facts.set(key, plain(value, false));
  if (const std::string v = text(l, "version"); v != version && !v.empty() && !told_version_) {
    told_version_ = true;
    run_.notes.push_back("written by tutti " + printable(v) + ", read by tutti-report " + version);
  }
  ++run_.starts;
  run_.status = "running";
  run_.message.clear();
  anew_ = true;
  generation_ = 0;
  began_at_ = run_.time;
  follows_start_ = true;
}

void LogReader::resume(const io::Json& l) {
  anew_ = false;
  const double step = step_of(l);
  run_.steps.drop_from(step + 1);
  run_.epochs.drop_from(step + 1);
  std::erase_if(run_.changes, [&](const Change& c) { return c.step > step; });
  std::erase_if(run_.shares, [&](const ShareChange& c) { return c.step > step; });
  if (run_.resumed.size() < most_resumes) run_.resumed.push_back(step);
  run_.status = "running";
  began_at_ = run_.time;
  follows_start_ = true;
}

void LogReader::begin_anew() {
  run_.steps.clear();
  run_.epochs.clear();
  run_.changes.clear();
  run_.shares.clear();
  run_.resumed.clear();
  run_.views = {};
  run_.time = began_at_ = 0;
}

double LogReader::time(double seconds) {
  if (!std::isfinite(seconds)) return run_.time;
  if (!follows_start_ && began_at_ + seconds < run_.time) began_at_ = run_.time - seconds;  // another process continues
  follows_start_ = false;
  return run_.time = std::max(run_.time, began_at_ + seconds);
}

void LogReader::step(const io::Json& l) {
  std::array<double, std::size(step_columns)> row{};
  row[0] = step_of(l);
  row[1] = time(number(l, "seconds"));
  for (std::size_t i = 2; i < row.size(); ++i) row[i] = number(l, step_columns[i]);
  run_.steps.add(row);
}

void LogReader::epoch(const io::Json& l) {
  std::array<double, std::size(epoch_columns)> row{};
  row[0] = step_of(l);
  for (std::size_t i = 2; i < row.size(); ++i) row[i] = number(l, epoch_columns[i]);
  for (const auto& [key, value] : l.as_object()) {
    const bool averaged = key.starts_with("test_ema_top");
    if ((!averaged && !key.starts_with("test_top")) || key.ends_with("top1")) continue;
    row[averaged ? 10 : 7] = number(l, key);
    run_.top_k = key.substr(key.rfind("top") + 3);
  }
  // Lines of epochs have no time. Without step lines, the time of an epoch is the sum of the durations so far.
  if (run_.steps.rows() == 0 && std::isfinite(row[14])) run_.time += row[14];
  row[1] = run_.time;
  run_.epochs.add(row);
}

void LogReader::members(const io::Json& l) {
  Change c{step_of(l), run_.time, l.at("ranks", "members").as_double("ranks"), number(l, "seconds"),
           number(l, "batch")};
  run_.changes.push_back(c);
}

void LogReader::shares(const io::Json& l) {
  ShareChange c{step_of(l), run_.time, number(l, "before"), number(l, "after"), {}, text(l, "note")};
  for (const io::Json& n : l.at("shares", "shares").as_array("shares")) {
    if (!c.shares.empty()) c.shares += ' ';
    c.shares += std::to_string(n.as_integer("shares"));
  }
  if (l.find("of") != nullptr) c.shares += " " + text(l, "of");
  if (run_.shares.size() < most_shares) run_.shares.push_back(std::move(c));
}

void LogReader::warning(std::string message) {
  if (run_.warnings.size() < most_warnings)
    run_.warnings.push_back(std::move(message));
  else
    ++run_.more_warnings;
}

void LogReader::end(const io::Json& l) {
  run_.status = text(l, "status");
  if (run_.status.empty()) run_.status = "ended";
  run_.message = text(l, "message");
}

}  // namespace tutti::report_tool
