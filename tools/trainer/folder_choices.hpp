// SPDX-License-Identifier: MIT
#pragma once

#include "tools/trainer/options.hpp"

// The choices of tutti-train: what a training on a folder of images needs, for the images and the machine.
namespace tutti::trainer {

// Sets the defaults for the images in `said.data_dir`: net, size, batch, rate, epochs and the share of validation
// images. said: the options that the user has given, with the programs' defaults. Does nothing without a folder. Throws
// DataError if the images are too few, with what is needed.
void choose_for_folder(RunOptions& o, const RunOptions& said);

// Prints the value of each choice. o: checked.
void print_choices(const RunOptions& o);

}  // namespace tutti::trainer
