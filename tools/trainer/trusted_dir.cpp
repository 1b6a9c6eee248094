// SPDX-License-Identifier: MIT
#include "tools/trainer/trusted_dir.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>

namespace tutti::trainer {

void require_trusted_dir(const io::Path& folder, std::string_view option) {
  io::Path path = folder.lexically_normal();
  if (path.filename().empty()) path = path.parent_path();  // a '/' at the end
  const io::Path above = path.has_parent_path() ? path.parent_path() : io::Path(".");
  struct stat parent {
  }, own{};
  if (::stat(above.c_str(), &parent) != 0 || (parent.st_mode & S_IWOTH) == 0) return;
  if (::lstat(path.c_str(), &own) != 0 || (!S_ISLNK(own.st_mode) && own.st_uid == ::geteuid())) return;
  fail<UsageError>(
      std::string(option), "a folder of this user, because all users may write to " + above.string(),
      path.string() + ", which is " + (S_ISLNK(own.st_mode) ? "a link" : "user " + std::to_string(own.st_uid) + "'s"),
      "remove it, or name a folder that only this user can write to");
}

}  // namespace tutti::trainer
