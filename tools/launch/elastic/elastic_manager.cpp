// SPDX-License-Identifier: MIT
#include "tools/launch/elastic/elastic_manager.hpp"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>

namespace tutti::launch {

ElasticManager::ElasticManager(std::filesystem::path folder, const std::vector<Host>& base, Say say)
    : say_(std::move(say)) {
  const char *given = variable("WORKER_LAUNCH_TEMPLATE_ID"), *tag = variable("ELASTIC_WORKER_TAG");
  if (given == nullptr && tag == nullptr) return;
  if (given == nullptr || tag == nullptr) {
    say_(std::string("warning: no elastic manager, because ") +
         (given == nullptr ? "WORKER_LAUNCH_TEMPLATE_ID" : "ELASTIC_WORKER_TAG") + " is not set");
    return;
  }
  const auto began = std::chrono::system_clock::now().time_since_epoch();
  const char* python = variable("AWS_DL_PYTHON");
  start_.argv = {python == nullptr ? "python3" : python,
                 program().string(),
                 "--elastic-dir",
                 folder.string(),
                 "--launch-template",
                 given,
                 "--tag",
                 tag,
                 "--since",
                 std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(began).count())};
  for (const Host& h : base) start_.argv.insert(start_.argv.end(), {"--base", h.name});
  start_.signal_at_parents_death = SIGTERM;
  begin();
}

void ElasticManager::watch() {
  if (start_.argv.empty()) return;
  if (child_ != nullptr) {
    const auto repeat = [this](std::string_view line) { say_("elastic manager: " + std::string(line)); };
    child_->poll_and_read(repeat, repeat);
    if (!child_->closed()) return;
    if (seconds_since(began_) > 300) pause_ = 1;
    say_("warning: the elastic manager ended with exit code " + std::to_string(child_->code()) +
         "; it is started again in " + seconds_text(pause_));
    child_.reset();
    next_ = Clock::now() + std::chrono::seconds(pause_);
    pause_ = std::min(2 * pause_, 60);
  }
  if (Clock::now() >= next_) begin();
}

void ElasticManager::end() {
  start_.argv.clear();
  if (child_ == nullptr) return;
  const auto repeat = [this](std::string_view line) { say_("elastic manager: " + std::string(line)); };
  child_->signal(SIGTERM);
  for (const auto since = Clock::now(); !child_->closed();) {
    if (seconds_since(since) > 15) child_->signal(SIGKILL);
    if (seconds_since(since) > 16) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    child_->poll_and_read(repeat, repeat);
  }
  child_.reset();
}

const char* ElasticManager::variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == 0 ? nullptr : value;
}

std::filesystem::path ElasticManager::program() {
  namespace fs = std::filesystem;
  const char* given = variable("AWS_DL_ELASTIC_MANAGER");
  const fs::path file = given != nullptr ? fs::path(given)
                                         : (fs::path(own_program()).parent_path().parent_path() / "share" / "tutti" /
                                            "bootstrap" / "elastic_manager.py");
  std::error_code error;
  if (!fs::is_regular_file(file, error))
    fail<UsageError>(
        "--elastic", "elastic_manager.py, because WORKER_LAUNCH_TEMPLATE_ID is set", "no file " + file.string(),
        "set AWS_DL_ELASTIC_MANAGER to its path, or unset WORKER_LAUNCH_TEMPLATE_ID to run without a manager");
  return file;
}

void ElasticManager::begin() {
  began_ = Clock::now();
  try {
    child_ = std::make_unique<Child>(start_, false);
  } catch (const Error& e) {
    say_("warning: " + std::string(e.what()) + "; trying again in " + seconds_text(pause_));
    next_ = Clock::now() + std::chrono::seconds(pause_);
    pause_ = std::min(2 * pause_, 60);
  }
}

}  // namespace tutti::launch
