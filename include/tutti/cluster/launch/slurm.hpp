// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/comm/net/host_name.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

// Reads the variables SLURM_* that Slurm sets for the processes of a job. `get` answers like std::getenv.
namespace tutti {

inline constexpr std::size_t max_slurm_nodes = 65536;
inline constexpr int max_slurm_tasks = 4096;  // of one node

namespace detail {

[[noreturn]] inline void fail_slurm(const std::string& variable, const std::string& expected, std::string_view got) {
  fail<UsageError>({"environment ", variable}, expected, {"'", printable(got.substr(0, 80)), "'"},
                   "Slurm sets it; if it is left over from another job, 'unset SLURM_JOB_ID'");
}

template <class Get>
[[nodiscard]] std::string slurm_text(const Get& get, const char* name) {
  const char* value = get(name);
  return value == nullptr ? "" : value;
}

// Expands the text in brackets, such as "01-03,7", to the numbers 01, 02, 03, 7. The numbers of a range have the
// leading zeros of its first number.
[[nodiscard]] inline std::vector<std::string> slurm_numbers(std::string_view list, const std::string& variable,
                                                            std::string_view all) {
  constexpr std::string_view form = "nodes as a,b[01-03,7]";
  std::vector<std::string> numbers;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    const std::string_view item = list.substr(at, end - at);
    const std::size_t dash = std::min(item.find('-'), item.size());
    const std::string_view first = item.substr(0, dash), last = dash < item.size() ? item.substr(dash + 1) : first;
    const auto low = number_between(first, 0, 999'999'999), high = number_between(last, 0, 999'999'999);
    if (!low || !high || *high < *low || first.size() > 9 || first.front() == '+')
      fail_slurm(variable, std::string(form), all);
    if (static_cast<std::size_t>(*high - *low) >= max_slurm_nodes - numbers.size())
      fail_slurm(variable, "at most " + std::to_string(max_slurm_nodes) + " nodes", all);
    for (int n = *low; n <= *high; ++n) {
      const std::string digits = std::to_string(n);
      numbers.push_back(std::string(first.size() - std::min(first.size(), digits.size()), '0') + digits);
    }
    at = end + 1;
  }
  return numbers;
}

}  // namespace detail

// Expands a list of nodes as Slurm writes it: "a[01-03,7],b" or "rack[0-1]n[1-4]". Throws UsageError, which names
// `variable`, for other text.
[[nodiscard]] inline std::vector<std::string> expand_slurm_nodes(std::string_view list, const std::string& variable) {
  std::vector<std::string> nodes;
  std::vector<std::string> names{""};  // of the item that is being read
  const auto wrong = [&] { detail::fail_slurm(variable, "nodes as a,b[01-03,7]", list); };
  const auto end_of_item = [&] {
    for (std::string& n : names) {
      if (!is_host_name(n)) wrong();
      nodes.push_back(std::move(n));
    }
    names.assign(1, "");
  };
  for (std::size_t at = 0; at < list.size(); ++at) {
    if (list[at] == ',') {
      end_of_item();
    } else if (list[at] == '[') {
      const std::size_t close = list.find(']', at);
      if (close == std::string_view::npos) wrong();
      const auto numbers = detail::slurm_numbers(list.substr(at + 1, close - at - 1), variable, list);
      if (numbers.size() * names.size() + nodes.size() > max_slurm_nodes)
        detail::fail_slurm(variable, "at most " + std::to_string(max_slurm_nodes) + " nodes", list);
      std::vector<std::string> more;
      for (const std::string& n : names)
        for (const std::string& number : numbers) more.push_back(n + number);
      names = std::move(more);
      at = close;
    } else {
      // No node has a longer name. The limit also keeps the cost of a hostile list small.
      for (std::string& n : names)
        if ((n += list[at]).size() > max_host_name) wrong();
    }
  }
  end_of_item();
  return nodes;
}

// Expands "2(x3),1" to 2, 2, 2, 1: the tasks of each node. Throws UsageError, which names `variable`, for other text.
[[nodiscard]] inline std::vector<int> expand_slurm_tasks(std::string_view list, const std::string& variable) {
  std::vector<int> tasks;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    std::string_view item = list.substr(at, end - at);
    std::optional<int> times = 1;
    if (const std::size_t open = item.find("(x"); open != std::string_view::npos) {
      times = item.ends_with(')') ? detail::number_between(item.substr(open + 2, item.size() - open - 3), 1,
                                                           static_cast<int>(max_slurm_nodes))
                                  : std::nullopt;
      item = item.substr(0, open);
    }
    const auto count = detail::number_between(item, 1, max_slurm_tasks);
    if (!count || !times || tasks.size() + static_cast<std::size_t>(*times) > max_slurm_nodes)
      detail::fail_slurm(variable, "tasks of each node as 2(x3),1", list);
    tasks.insert(tasks.end(), static_cast<std::size_t>(*times), *count);
    at = end + 1;
  }
  return tasks;
}

// A process of srun.
struct SlurmStep {
  bool pmix = false;  // it runs under Slurm's PMIx, by which MPI finds the other ranks
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
};
// Returns no value if srun has not started this process. A batch script has no step.
template <class Get>
[[nodiscard]] std::optional<SlurmStep> read_slurm_step(const Get& get) {
  const auto number = [&](const char* name, int low, int high, int otherwise) {
    const std::string text = detail::slurm_text(get, name);
    if (text.empty()) return otherwise;
    const auto n = detail::number_between(text, low, high);
    if (!n) detail::fail_slurm(name, "an integer from " + std::to_string(low) + " to " + std::to_string(high), text);
    return *n;
  };
  if (detail::slurm_text(get, "SLURM_STEP_NUM_TASKS").empty()) return {};
  SlurmStep s;
  s.size = number("SLURM_STEP_NUM_TASKS", 1, 1 << 24, 1);
  s.rank = number("SLURM_PROCID", 0, s.size - 1, 0);
  const std::string list = detail::slurm_text(get, "SLURM_STEP_TASKS_PER_NODE");
  if (!list.empty()) {
    const auto tasks = expand_slurm_tasks(list, "SLURM_STEP_TASKS_PER_NODE");
    s.local_size = tasks[static_cast<std::size_t>(number("SLURM_NODEID", 0, static_cast<int>(tasks.size()) - 1, 0))];
    s.local_rank = number("SLURM_LOCALID", 0, s.local_size - 1, 0);
  }
  // The variables must be of this step, not of one that contains it.
  s.pmix = !detail::slurm_text(get, "PMIX_RANK").empty() && !detail::slurm_text(get, "SLURM_PROCID").empty() &&
           detail::slurm_text(get, "PMIX_NAMESPACE") ==
               "slurm.pmix." + detail::slurm_text(get, "SLURM_JOB_ID") + "." + detail::slurm_text(get, "SLURM_STEP_ID");
  return s;
}

}  // namespace tutti
