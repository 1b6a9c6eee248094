// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

#include <tutti/io/file.hpp>

namespace tutti::trainer {

// UsageError, with the option's name, for a folder that somebody else could have put there: in one that everybody may
// write to, such as /tmp, a link, or a folder of another user. A run would go on from what is in it, and write over
// whatever a link leads to. What is not there yet is nobody's.
void refuse_planted(const io::Path& folder, std::string_view option);

}  // namespace tutti::trainer
