// SPDX-License-Identifier: MIT
#pragma once

#include <iosfwd>

// Writes the version of tutti and a learning rate.
void report(std::ostream& out, double lr);
