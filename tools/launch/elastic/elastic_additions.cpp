// SPDX-License-Identifier: MIT
#include "tools/launch/elastic/elastic_additions.hpp"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>

#include "tools/launch/elastic/elastic_site.hpp"
#include "tools/launch/host/wire.hpp"
#include "tools/launch/job/blame.hpp"
#include "tools/launch/job/commands.hpp"

namespace tutti::launch {

void ElasticAdditions::started(const std::string& name, Link& l) {
  if (ElasticWorker* w = find(name)) {
    w->link = &l;
    w->pending = false;
  }
}

void ElasticAdditions::add(HostEntry& s, int count) {
  Addition a{s.where.key, {}, nullptr};
  for (int i = 0; i < count; ++i) {
    int local = 0;
    while (!workers_on(s.where.key, [&](const ElasticWorker& w) { return w.local_rank == local; }).empty()) ++local;
    ElasticWorker& w = workers_[next_];
    w.number = next_++;
    w.key = s.where.key;
    w.local_rank = local;
    a.numbers.push_back(w.number);
    say_("Launching worker node at ip: " + s.where.host.name);
  }
  additions_.push_back(std::move(a));
  Addition& mine = additions_.back();
  // rsync and mpirun find the host in this folder.
  if (!folder_.path().empty() && !s.where.here()) folder_.add(s.where.host, !o_.elastic.accept_new_hosts);
  if (!o_.sync_dir.empty() && !s.where.here()) {
    mine.copy = std::make_unique<Child>(copy_of_folder(s.where.host, false, o_, folder_.path()), false);
  } else {
    begin(mine, !o_.elastic.prepare.empty());
  }
}

void ElasticAdditions::prepared(const ProcessExit& e) {
  for (Addition& a : additions_) {
    if (process_name("prepare", a.numbers.front()) != e.name || a.over) continue;
    if (e.good())
      begin(a, false);
    else
      give_up(a, error_message("host " + e.host, "exit code 0 of --prepare-script", describe(e.end), ""));
    return;
  }
}

void ElasticAdditions::go_on_with_additions() {
  for (Addition& a : additions_) {
    if (a.copy == nullptr) continue;
    a.copy->poll_and_read([](std::string_view) {},
                          [&](std::string_view line) { errors_[a.key] += std::string(line) + "\n"; });
    if (!a.copy->closed()) continue;
    const int code = a.copy->code();
    a.copy.reset();
    const std::string errors = std::exchange(errors_[a.key], "");
    if (a.over) continue;
    if (code == 0)
      begin(a, !o_.elastic.prepare.empty());
    else
      give_up(a, copy_problem(hosts_[a.key].where.host, o_, code, errors).message);
  }
  std::erase_if(additions_, [](const Addition& a) { return a.over && a.link == nullptr && a.copy == nullptr; });
}

std::set<int> ElasticAdditions::end_additions(const Link& l) {
  std::set<int> numbers;
  for (Addition& a : additions_)
    if (a.link == &l && !std::exchange(a.over, true)) numbers.insert(a.numbers.begin(), a.numbers.end());
  return numbers;
}

void ElasticAdditions::end_addition(ElasticWorker& w) {
  for (Addition& a : additions_) {
    if (!w.pending || std::find(a.numbers.begin(), a.numbers.end(), w.number) == a.numbers.end()) continue;
    a.over = true;
    if (a.copy) a.copy->signal(SIGKILL);
    if (a.link != nullptr) a.link->say("stop");
    w.ended = true;
  }
}

void ElasticAdditions::stop_additions() {
  for (Addition& a : additions_) {
    if (std::exchange(a.over, true)) continue;
    if (a.copy) a.copy->signal(SIGKILL);
    for (const int number : a.numbers)
      if (a.link != nullptr && !members_.opened(process_name("worker", number))) a.link->say("stop");
  }
}

void ElasticAdditions::begin(Addition& a, bool prepare) {
  const ListedHost& where = hosts_[a.key].where;
  if (Link* const agent = members_.agent_of(a.key); agent != nullptr && !prepare) {
    for (const int number : a.numbers) {
      members_.add(*agent, process_name("worker", number), number);
      started(process_name("worker", number), *agent);
    }
    a.over = true;
    return;
  }
  std::vector<ProcessOrder> workers;
  for (const int number : a.numbers) {
    const int local = workers_[number].local_rank;
    workers.push_back({"worker", number, local, std::max(where.host.slots, local + 1), 0});
  }
  int count = 0;
  for (const auto& [number, w] : workers_) count += w.counts() ? 1 : 0;
  const std::uint64_t epoch = members_.epoch() + (o_.elastic.at_epoch ? 1 : 0);
  Plan::Site site = joining_site(plan_, where, std::move(workers), count, epoch);
  if (prepare) site = prepare_site(std::move(site), o_.elastic.prepare);
  a.preparing = prepare;
  try {
    links_.emplace_back(std::move(site), o_);
    a.link = &links_.back();
  } catch (const Error& e) {
    give_up(a, e.what());
  }
}

void ElasticAdditions::give_up(Addition& a, const std::string& why) {
  for (const int number : a.numbers) workers_[number].ended = true;
  a.over = true;
  failed(a.key, why);
}

}  // namespace tutti::launch
