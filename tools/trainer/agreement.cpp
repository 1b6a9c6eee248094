// SPDX-License-Identifier: MIT
#include "tools/trainer/agreement.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>
#include <tutti/strategy/broadcast_text.hpp>
#include <tutti/train/detail/files/data_facts.hpp>
#include <tutti/train/run_with_heartbeat.hpp>

#include "tools/trainer/option_groups.hpp"
#include "tools/trainer/option_values.hpp"
#include "tools/trainer/options_json.hpp"
#include "tools/trainer/recipe.hpp"
#include "tools/trainer/run_folder.hpp"

namespace tutti::trainer {

JobFacts facts(const RunOptions& o) {
  JobFacts f;
  const std::map<std::string, Scope> scopes = scopes_of(o);
  const io::Json json = options_json(o);
  // GPUs without bf16 change these two options. The trainer adds their final values to its facts.
  const auto open = [&](const std::string& name) {
    return o.any_half && (name == "precision" || name == "loss-scale");
  };
  for (const auto& [name, value] : json.as_object()) {
    if (scopes.at(name) == Scope::rank || open(name)) continue;
    const bool derived = std::find(o.derived.begin(), o.derived.end(), name) != o.derived.end();
    f.add("--" + name, derived ? "left out" : io::write_json(value));
  }
  return f;
}

JobFacts facts(const RunOptions& o, const Images& images) {
  JobFacts f = facts(o);
  const bool may_skip = o.on_bad_record != "fail";
  try {
    add_data(f, "training data", images.train, may_skip);
    if (images.test) add_data(f, "test data", *images.test, may_skip);
  } catch (const DataError& e) {
    const std::string message = e.what(), hint = bad_record_hint(o);
    if (hint.empty()) throw;
    throw DataError(message + (message.find(" hint: ") == std::string::npos ? " hint: " : " ") + hint + ".");
  }
  return f;
}

Schema schema_of(RunOptions& o, const Task& task) {
  const Schema seen = task.schema(o);
  // check() does not know sizes that are only in the records.
  if (o.network == "resnet" && std::max(seen.height, seen.width) <= 28) o.network = "resnet_preact";
  return seen;
}

Loaded load(RunOptions& o, const Task& task) {
  const Schema seen = schema_of(o, task);
  return {seen, task.images(o, seen)};
}

void agree_on_run_folder(AnyStrategy& strategy, RunOptions& o) {
  if (strategy.rank() == 0) settle_run_folder(o);
  o.run_dir = broadcast_text(strategy, "--run-dir", o.run_dir);
}

void take_average(AnyStrategy& strategy, RunOptions& o) {
  std::string decay;
  run_with_heartbeat(strategy, "reading a checkpoint", [&] {
    if (strategy.rank() != 0) return;
    const auto found = find_checkpoint(o, [](const std::string&) {});
    if (!found) return;
    const io::Json *const was = found->options().find("ema-decay"), *const how = found->options().find("ema-schedule");
    const bool lookahead = how != nullptr && how->is_string() && how->as_string() == "lookahead";
    if (was != nullptr && !lookahead) decay = io::write_json(*was);
  });
  decay = broadcast_text(strategy, "--ema-decay", decay);
  if (!decay.empty() && o.ema_decay == 0) detail::assign("--ema-decay", decay, o.ema_decay);
}

bool saves_with_coordinator(AnyStrategy& strategy, const RunOptions& o) {
  if (strategy.size() == 1) return false;
  const bool coordinator = strategy.rank() == 0;
  double word = coordinator ? static_cast<double>(::getpid()) : 0;
  strategy.sum({&word, 1});
  const io::Path mark = io::Path(o.run_dir) / (".rank-0-saves-here-" + std::to_string(std::llround(word)));
  if (coordinator) io::atomic_write_file(mark, "");
  strategy.sum({&word, 1});  // after this, the mark exists
  const bool saves = !coordinator && launched().local_rank == 0 && !io::path_exists(mark);
  run_with_heartbeat(strategy, "making a run folder", [&] {
    if (!saves) return;
    if (o.clear_log) detail::clear_run(o.run_dir);
    io::make_directories(o.run_dir);
  });
  // After this, all ranks have checked for the mark.
  if (coordinator) io::remove_tree(mark);
  return saves;
}

}  // namespace tutti::trainer
