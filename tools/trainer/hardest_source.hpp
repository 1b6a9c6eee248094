// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>

#include <tutti/data/batch_source.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/engine/backend.hpp>

#include "tools/trainer/options.hpp"

// Training on the hardest images of each batch, chosen by a small net, as airbench96_faster.py.
namespace tutti::trainer {

// Returns a source with the --hardest share of each batch of `source`: the images with the largest losses of a net of
// the same form with 32, 64 and 64 channels, which the source trains on every fourth batch. Only for one process, from
// the beginning of a run: start() at another position throws UsageError. schema, train: as for make_model(). Backend
// and options must outlive the source.
[[nodiscard]] std::unique_ptr<BatchSource> hardest_source(std::unique_ptr<BatchSource> source, Backend& backend,
                                                          const RunOptions& o, const Schema& schema,
                                                          const AnyDataset& train);

}  // namespace tutti::trainer
