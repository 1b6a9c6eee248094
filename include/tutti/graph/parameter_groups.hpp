// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/nearest_word.hpp>
#include <tutti/graph/graph.hpp>

// Groups of parameters, by patterns of their names: which of them training changes, and at which rate. A model is
// changed before a Trainer is made of it.
namespace tutti {

namespace detail {

// Returns whether the whole text matches: '*' stands for any characters, '?' for one.
[[nodiscard]] inline bool matches_whole(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, from = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] != '*' && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      from = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++from;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

// Returns the texts between the commas, without empty ones.
[[nodiscard]] inline std::vector<std::string> split_at_commas(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    if (!part.empty()) parts.emplace_back(part);
  }
  return parts;
}

// Returns the three names that are most similar to a pattern, as a list.
[[nodiscard]] inline std::string nearest_names(std::string_view pattern, const std::vector<std::string>& names) {
  std::string word(pattern);
  std::erase_if(word, [](char c) { return c == '*' || c == '?'; });
  std::vector<std::pair<std::size_t, std::string>> near;
  for (const std::string& n : names) {
    const bool inside = word.size() > 1 && n.find(word) != std::string::npos;
    near.emplace_back(inside ? 0 : edit_distance(word, n), n);
  }
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string list;
  for (std::size_t i = 0; i < near.size() && i < 3; ++i) list += (i > 0 ? ", " : "") + near[i].second;
  return list;
}

// Returns the names and the layers to which they belong: conv1 and conv1.weight for conv1.weight.
[[nodiscard]] inline std::vector<std::string> with_layers(const std::vector<std::string>& names) {
  std::vector<std::string> all;
  for (const std::string& n : names)
    for (std::size_t dot = n.find('.'); dot != std::string::npos; dot = n.find('.', dot + 1)) {
      std::string layer = n.substr(0, dot);
      if (std::find(all.begin(), all.end(), layer) == all.end()) all.push_back(std::move(layer));
    }
  all.insert(all.end(), names.begin(), names.end());
  return all;
}

}  // namespace detail

// Returns whether a pattern matches a parameter's name as a whole, or a layer that it belongs to: "layer1" and
// "layer1.*.conv?" match "layer1.0.conv1.weight". '*' stands for any characters, '?' for one.
[[nodiscard]] inline bool matches_parameter(std::string_view pattern, std::string_view name) {
  return detail::matches_whole(pattern, name) || detail::matches_whole(std::string(pattern) + ".*", name);
}

// Returns the parameters of a model whose names match one of the patterns, which commas separate. A pattern after '!'
// takes parameters out again: "*,!fc" are all but those of layer fc. Throws UsageError if a pattern matches no
// parameter, with the most similar names, or if all of them together choose no parameter. where: names the option in
// messages.
[[nodiscard]] inline std::vector<ValueId> find_parameters(const Graph& g, std::string_view patterns,
                                                          std::string_view where) {
  std::vector<std::string> names;
  std::vector<ValueId> all;
  for (std::size_t v = 0; v < g.values.size(); ++v) {
    if (g.values[v].storage != Storage::parameter) continue;
    names.push_back(g.values[v].name);
    all.push_back(static_cast<ValueId>(v));
  }
  std::vector<bool> chosen(all.size(), false);
  for (const std::string& part : detail::split_at_commas(patterns)) {
    const bool out = part.starts_with('!');
    const std::string_view pattern = std::string_view(part).substr(out ? 1 : 0);
    bool any = false;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!matches_parameter(pattern, names[i])) continue;
      any = true;
      chosen[i] = !out;
    }
    if (!any)
      fail<UsageError>(where, "a pattern of parameters' names, such as layer1 or *.bn?.weight",
                       {"'", pattern, "', which matches none of ", names.size()},
                       {"the nearest are ", detail::nearest_names(pattern, detail::with_layers(names))});
  }
  std::vector<ValueId> found;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (chosen[i]) found.push_back(all[i]);
  if (found.empty() && !patterns.empty())
    fail<UsageError>(where, "patterns that choose a parameter or more", {"'", patterns, "', which chooses none"},
                     "a pattern after ! takes out what an earlier one has chosen: *,!fc is all but fc");
  return found;
}

// Makes the parameters that match constant: a step does not change them, not by weight decay either, and ranks do not
// exchange gradients of them. The backward pass ends where no parameter below needs a gradient. Returns their number.
// Throws UsageError if a pattern matches nothing (find_parameters()) or no parameter is left to learn.
inline std::size_t freeze(Graph& g, std::string_view patterns, std::string_view where = "freeze") {
  const std::vector<ValueId> frozen = find_parameters(g, patterns, where);
  for (const ValueId v : frozen) g[v].trainable = false;
  bool learns = false;
  for (Value& v : g.values) {
    if (v.storage != Storage::parameter) continue;
    v.requires_grad = v.trainable;
    learns = learns || v.trainable;
  }
  if (!learns)
    fail<UsageError>(where, "a parameter or more that learns", "patterns that match all of them",
                     "leave the classifier out, for example by *,!fc");
  for (const Node& n : g.nodes) {
    const bool grad = std::any_of(n.inputs.begin(), n.inputs.end(), [&](ValueId v) { return g[v].requires_grad; });
    for (const ValueId v : n.outputs) g[v].requires_grad = grad && g[v].precision == Precision::compute;
  }
  return frozen.size();
}

// Multiplies the learning rate of the parameters that match by `factor`, over 0 and up to 1e6, but not the effect of
// weight decay in a step. With LARS, LARC and LAMB it multiplies the whole step of a tensor, decay included, because
// their trust ratio is of both together. Returns their number. Throws UsageError as find_parameters() does.
inline std::size_t scale_rate(Graph& g, std::string_view patterns, double factor,
                              std::string_view where = "scale_rate") {
  if (!(factor > 0 && factor <= 1e6))
    fail<UsageError>(where, "a factor over 0 and up to 1e6", factor, factor == 0 ? "freeze the parameters" : "");
  const std::vector<ValueId> found = find_parameters(g, patterns, where);
  for (const ValueId v : found) g[v].lr_scale *= factor;
  return found.size();
}

}  // namespace tutti
