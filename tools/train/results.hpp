// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "tools/report/page.hpp"
#include "tools/trainer/options.hpp"

// What tutti-train leaves in the run's folder after a training.
namespace tutti::train_tool {

// Writes report.html, net.onnx and worst.txt from the files of the run, and prints the scores of the classes, the files
// and the commands that go on. A file that cannot be written is reported, and the others are written. words: those of
// the command, after the program.
void write_results(const trainer::RunOptions& o, const std::vector<std::string>& words,
                   const report_tool::PageParts& page);

}  // namespace tutti::train_tool
