// SPDX-License-Identifier: MIT
// A second translation unit that includes tutti: the link fails if a function of tutti is not inline.
#include "report.hpp"

#include <ostream>

#include <tutti/tutti.hpp>

void report(std::ostream& out, const std::string& backend, double first, double last) {
  out << "tutti " << tutti::version << " on " << backend << ": loss " << first << " -> " << last << '\n';
}
