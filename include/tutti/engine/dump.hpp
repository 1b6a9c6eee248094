// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <tutti/core/separate.hpp>
#include <tutti/engine/plan/plan.hpp>

namespace tutti {

// Returns one line for each node: what it reads and writes.
[[nodiscard]] TUTTI_CORE_FUNCTION std::string dump_text(const Graph& g);

// Returns the graph for Graphviz: `dot -Tsvg`.
[[nodiscard]] TUTTI_CORE_FUNCTION std::string dump_graphviz(const Graph& g);

// Returns a plan's segments: which steps run between two barriers, on how many rows at a time.
[[nodiscard]] TUTTI_CORE_FUNCTION std::string dump_text(const Graph& g, const Plan& p);

#if TUTTI_CORE_DEFINITIONS

TUTTI_CORE_FUNCTION std::string dump_text(const Graph& g) {
  std::string out;
  for (std::size_t i = 0; i < g.nodes.size(); ++i) {
    const Node& n = g.nodes[i];
    out += std::to_string(i) + ": " + std::string(name_of(n.op)) + " '" + n.name + "' (";
    for (std::size_t k = 0; k < n.inputs.size(); ++k)
      out += (k ? ", %" : "%") + std::to_string(n.inputs[k]) + ' ' + to_string(g[n.inputs[k]]);
    out += ") -> (";
    for (std::size_t k = 0; k < n.outputs.size(); ++k)
      out += (k ? ", %" : "%") + std::to_string(n.outputs[k]) + ' ' + to_string(g[n.outputs[k]]);
    out += ")\n";
  }
  return out;
}

TUTTI_CORE_FUNCTION std::string dump_graphviz(const Graph& g) {
  const auto quoted = [](const std::string& name) {
    std::string r;
    for (const char c : name) (c == '"' || c == '\\' ? r += '\\' : r) += c;
    return r;
  };
  std::string out;
  out += "digraph model {\n  rankdir=TB;\n  node [shape=box, fontname=\"sans-serif\"];\n";
  for (std::size_t i = 0; i < g.nodes.size(); ++i) {
    const Node& n = g.nodes[i];
    out += "  n" + std::to_string(i) + " [label=\"" + std::string(name_of(n.op)) + "\\n" + quoted(n.name) + "\"" +
           (n.backward ? ", style=dashed" : "") + "];\n";
    for (ValueId v : n.inputs)
      if (g[v].producer >= 0)
        out += "  n" + std::to_string(g[v].producer) + " -> n" + std::to_string(i) + " [label=\"" + to_string(g[v]) +
               "\"];\n";
  }
  out += "}\n";
  return out;
}

TUTTI_CORE_FUNCTION std::string dump_text(const Graph& g, const Plan& p) {
  static constexpr const char* phases[] = {"", " reduce", " finish", ""};
  std::string out;
  out += "plan for " + std::to_string(p.rows) + " rows in " + std::to_string(p.shards) + " shards, " +
         std::to_string(p.activation_bytes) + " bytes of activations, " + std::to_string(p.scratch_bytes) +
         " of scratch per worker\n";
  for (std::size_t s = 0; s < p.segments.size(); ++s) {
    const Segment& seg = p.segments[s];
    out += "segment " + std::to_string(s) + (seg.whole ? " whole" : " by " + std::to_string(seg.chunk_rows) + " rows") +
           ':';
    for (const Step& step : seg.steps) {
      const Node& n = g.nodes[static_cast<std::size_t>(step.node)];
      out += ' ' + n.name + '/' + std::string(name_of(n.op)) + phases[static_cast<std::size_t>(step.phase)] + ';';
    }
    out += '\n';
  }
  return out;
}

#endif

}  // namespace tutti
