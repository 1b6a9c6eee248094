// SPDX-License-Identifier: MIT
#pragma once

#include <iosfwd>
#include <string>

// Writes the version of tutti, the backend and two losses.
void report(std::ostream& out, const std::string& backend, double first, double last);
