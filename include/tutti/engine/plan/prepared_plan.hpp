// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/engine/custom_kernel.hpp>
#include <tutti/engine/kernel.hpp>
#include <tutti/engine/plan/planner.hpp>
#include <tutti/graph/custom.hpp>
#include <tutti/graph/graph.hpp>

// A plan and what a backend needs to run it.
namespace tutti {

// Returns a different number for each call in a process; never 0.
[[nodiscard]] inline std::uint64_t next_run_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

struct PreparedPlan {  // A plan with its kernels.
  Plan plan;
  const Graph* graph = nullptr;
  std::vector<std::unique_ptr<Kernel>> kernels;  // per node
  std::uint64_t id = next_run_id();              // identifies captured runs of this plan
};

namespace detail {

// Returns the numbers of rows that an op of this segment gets in one call.
[[nodiscard]] inline std::vector<std::int64_t> chunk_sizes(const Plan& p, const Segment& seg) {
  if (seg.whole) return {p.rows};
  std::vector<std::int64_t> sizes;
  for (int s = 0; s < p.shards; ++s)
    for (std::int64_t r = p.shard_begin(s), end = p.shard_begin(s + 1); r < end; r += seg.chunk_rows) {
      const std::int64_t n = std::min(seg.chunk_rows, end - r);
      if (std::find(sizes.begin(), sizes.end(), n) == sizes.end()) sizes.push_back(n);
    }
  return sizes;
}

// Throws the error for a node that the backend has no kernel for.
[[noreturn]] inline void fail_without_kernel(const Backend& b, const Node& n) {
  if (const CustomOp* custom = custom_op(n.op))
    fail<UsageError>(n.name, {"a kernel of the custom op '", custom->name, "' for backend '", b.name(), "'"},
                     "no kernel", "add it to CustomOp::forward and CustomOp::backward");
  fail<UsageError>(n.name, {"an op that backend '", b.name(), "' runs"}, name_of(n.op));
}

}  // namespace detail

// Returns the planner's queries to a backend; they make the kernels of p's graph.
[[nodiscard]] inline PlanQueries plan_queries(Backend& b, PreparedPlan& p) {
  p.kernels.clear();
  p.kernels.resize(p.graph->nodes.size());
  return {[&b, &p](NodeId node, const NodeDesc& d) {
            const Node& n = p.graph->nodes[static_cast<std::size_t>(node)];
            auto& kernel = p.kernels[static_cast<std::size_t>(node)];
            kernel = b.kernel(n.op, d);
            if (!kernel) detail::fail_without_kernel(b, n);
            return kernel->cut();
          },
          [&p](NodeId node) { return p.kernels[static_cast<std::size_t>(node)]->packed_bytes(); }, b.packs_once()};
}

// Returns op and layer of the nodes that run by the reference loops, unless b is the reference backend.
[[nodiscard]] inline std::vector<std::string> fallbacks_of(const Backend& b, const PreparedPlan& p) {
  std::vector<std::string> list;
  if (b.name() == "reference") return list;
  for (std::size_t i = 0; i < p.kernels.size(); ++i)
    if (p.kernels[i] && p.kernels[i]->is_fallback())
      list.push_back(std::string(name_of(p.graph->nodes[i].op)) + " (" + p.graph->nodes[i].name + ")");
  return list;
}

// Prepares the kernels of the plan's nodes.
inline void prepare_kernels(const Backend& b, PreparedPlan& p) {
  std::vector<bool> ready(p.kernels.size());
  for (const Segment& seg : p.plan.segments)
    for (const Step& step : seg.steps) {
      const auto i = static_cast<std::size_t>(step.node);
      const Node& n = p.graph->nodes[i];
      if (n.inputs.size() > Call::max_operands || n.outputs.size() > Call::max_operands)
        fail<UsageError>(n.name, "at most 16 operands", std::max(n.inputs.size(), n.outputs.size()));
      if (ready[i]) continue;
      ready[i] = true;
      PrepareInfo info;
      for (ValueId v : n.inputs) info.desc.in.push_back(p.plan.desc(v));
      for (ValueId v : n.outputs) info.desc.out.push_back(p.plan.desc(v));
      info.desc.compute = p.plan.compute;
      info.desc.rows = p.plan.rows;
      info.desc.shards = p.plan.shards;
      info.desc.parts = p.plan.parts;
      info.partition = p.plan.partitions[i];
      info.chunk_rows = detail::chunk_sizes(p.plan, seg);
      info.workers = b.threads();
      p.kernels[i]->prepare(info);
    }
}

}  // namespace tutti
