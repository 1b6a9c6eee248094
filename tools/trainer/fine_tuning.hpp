// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include <tutti/engine/backend.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/io/file.hpp>

#include "tools/trainer/options.hpp"
#include "tools/trainer/task.hpp"

// The options of fine-tuning: parameters that stay, rates of groups, frozen statistics and weights of classes.
namespace tutti::trainer {

namespace detail {

// Returns the weight of each class. text: the value of --class-weights. names: of the classes; images: of each class.
// Throws UsageError that names the nearest classes.
std::vector<float> class_weights(const std::string& text, const std::vector<std::string>& names,
                                 const std::vector<std::int64_t>& images);

void check_fine_tuning(RunOptions& o);

}  // namespace detail

// Applies --freeze, --rate-of and --decay-of to a net.
void group_parameters(Graph& model, const RunOptions& o);

// Returns a note if the weights of --pretrained have a classifier that fits but is that of other classes; otherwise an
// empty text. Call it after they were loaded.
[[nodiscard]] std::string of_other_classes(const RunOptions& o, const Schema& seen);

// Returns the net that the trainer gets: with frozen statistics and weights of classes. Adds to the notes of `images`
// what is frozen and weighted.
Graph trained_net(const Graph& model, const RunOptions& o, const Schema& seen, const Backend& backend, Images& images);

// Throws UsageError if the checkpoint's net has learnt other classes: two folders of images may have the same name, and
// then the same run. names: the classes of the images, or empty.
void require_classes_of(const io::Path& checkpoint, const RunOptions& o, const std::vector<std::string>& names);

}  // namespace tutti::trainer
