// SPDX-License-Identifier: MIT
// A second translation unit that includes tutti: whatever is not inline is defined twice then.
#include "report.hpp"

#include <ostream>

#include <tutti/tutti.hpp>
#include <tutti/version.hpp>

void report(std::ostream& out, double lr) { out << "tutti " << tutti::version << ", learning rate " << lr << '\n'; }
