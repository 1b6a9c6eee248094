// SPDX-License-Identifier: MIT
#pragma once

#include "tools/data/options.hpp"
#include "tools/data/verify.hpp"

namespace tutti::data_tool {

// Opens every split before it writes the first one, so that missing input is reported at once.
void convert(const Options& o);

void resize(const Options& o);

void preprocess(const Options& o);

void info(const Options& o);

// Returns the exit code. Throws tutti's errors.
[[nodiscard]] int verify(const Options& o);

}  // namespace tutti::data_tool
