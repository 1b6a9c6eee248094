// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <tutti/backend/backend.hpp>
#include <tutti/core/error.hpp>
#include <tutti/graph/custom.hpp>
#include <tutti/graph/planner.hpp>
#include <tutti/tensor/memory.hpp>
#include <tutti/train/weight_packs.hpp>

// A plan and what a backend needs to run it.
namespace tutti {

// Different for each call in a process; never 0.
[[nodiscard]] inline std::uint64_t next_run_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

template <class B>
struct PreparedPlan {
  Plan plan;
  const Graph* graph = nullptr;
  std::vector<std::shared_ptr<void>> states;  // per node, the backend's
  std::uint64_t id = next_run_id();           // what was captured of it belongs to it alone
};

// What the planner asks a backend.
template <Backend B>
[[nodiscard]] PlanQueries plan_queries(B& b) {
  return {[&b](const Op& any, const NodeDesc& d) {
            return visit_op(any, [&]<class O>(const O& x) {
              if constexpr (RunsOp<B, O>)
                return b.partition(x, d);
              else
                return Partition{};
            });
          },
          [&b](const Op& any, const NodeDesc& d) { return b.pack_bytes(any, d); }, WeightPacks<B>::once};
}

namespace detail {

template <Backend B>
std::shared_ptr<void> custom_kernel(const B& b, const Node& n, const CustomOp& def,
                                    const std::map<std::string, CustomOp::Kernel>& kernels) {
  auto it = kernels.find(b.name());
  if (it == kernels.end() && std::is_base_of_v<HostMemory, B>) it = kernels.find("host");
  if (it == kernels.end())
    fail<UsageError>(n.name, "a kernel of the custom op '" + def.name + "' for backend '" + b.name() + "'", "none",
                     "add it to CustomOp::forward and CustomOp::backward");
  return std::make_shared<CustomOp::Kernel>(it->second);
}
template <Backend B, class O>
std::shared_ptr<void> prepare_op(B& b, const Node& n, const O& o, const PrepareInfo& info) {
  if constexpr (std::is_same_v<O, op::Custom>)
    return custom_kernel(b, n, *o.def, o.def->forward);
  else if constexpr (std::is_same_v<O, op::CustomBackward>)
    return custom_kernel(b, n, *o.def, o.def->backward);
  else if constexpr (RunsOp<B, O>)
    return b.prepare(o, info);
  else  // an optional op, which only a backend's own lower() makes
    fail(n.name, "an op that backend '" + b.name() + "' runs", std::string(name_of(n.op)));
}

// The numbers of rows that an op of this segment sees at once.
template <class = void>
[[nodiscard]] std::vector<std::int64_t> chunk_sizes(const Plan& p, const Segment& seg) {
  if (seg.whole) return {p.rows};
  std::vector<std::int64_t> sizes;
  for (int l = 0; l < p.lanes; ++l)
    for (std::int64_t r = p.lane_begin(l), end = p.lane_begin(l + 1); r < end; r += seg.chunk_rows) {
      const std::int64_t n = std::min(seg.chunk_rows, end - r);
      if (std::find(sizes.begin(), sizes.end(), n) == sizes.end()) sizes.push_back(n);
    }
  return sizes;
}

}  // namespace detail

// Lets the backend prepare every op of the plan.
template <Backend B>
void prepare_ops(B& b, PreparedPlan<B>& p) {
  p.states.resize(p.graph->nodes.size());
  for (const Segment& seg : p.plan.segments)
    for (const Step& step : seg.steps) {
      const auto i = static_cast<std::size_t>(step.node);
      const Node& n = p.graph->nodes[i];
      if (n.inputs.size() > Call::max_operands || n.outputs.size() > Call::max_operands)
        fail<UsageError>(n.name, "at most 16 operands", std::to_string(std::max(n.inputs.size(), n.outputs.size())));
      if (p.states[i]) continue;
      PrepareInfo info;
      for (ValueId v : n.inputs) info.desc.in.push_back(p.plan.desc(v));
      for (ValueId v : n.outputs) info.desc.out.push_back(p.plan.desc(v));
      info.desc.compute = p.plan.compute;
      info.desc.rows = p.plan.rows;
      info.desc.lanes = p.plan.lanes;
      info.partition = p.plan.partitions[i];
      info.chunk_rows = detail::chunk_sizes(p.plan, seg);
      info.workers = b.threads();
      p.states[i] = visit_op(n.op, [&](const auto& o) { return detail::prepare_op(b, n, o, info); });
    }
}

}  // namespace tutti
