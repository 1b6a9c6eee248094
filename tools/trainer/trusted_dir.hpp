// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

#include <tutti/io/file.hpp>

namespace tutti::trainer {

// Throws UsageError with the option's name if another user could have created `folder`: it lies in a folder that all
// users may write to, such as /tmp, and is a link or belongs to another user. A run would continue from what is in it,
// and overwrite the target of a link. A folder that does not exist yet is accepted.
void require_trusted_dir(const io::Path& folder, std::string_view option);

}  // namespace tutti::trainer
