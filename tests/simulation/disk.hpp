// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "clock.hpp"
#include "random.hpp"

namespace tutti::simulation {

// The disk of a job: a folder below the schedule's own one, which all machines share. Its files are those of the
// system. This class knows which changes have reached the disk, so that the power can be cut: of each file and of each
// folder, the first changes since its last fsync() remain, in any number, and the last one of a file may be torn. No
// promise holds between files: a name can be on the disk while its file is still empty.
class Disk {
 public:
  // Faults, each until a time of the simulation.
  Nanos full_until = 0;    // writes are short, and then there is no space
  Nanos broken_until = 0;  // fsync() may fail, and what it should have written then never reaches the disk
  std::uint64_t fails_once_in = 1;
  Nanos slow_until = 0;
  Nanos slowest = 0;  // the longest time of a call while the disk is slow

  // folder: a relative path of one name, which does not exist yet.
  Disk(std::string folder, Random random) : top_(std::move(folder)), random_(random) {
    base_ = std::filesystem::current_path().string() + "/";
    std::filesystem::create_directory(top_);
    current_ = this;
  }
  ~Disk() { current_ = nullptr; }
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;
  [[nodiscard]] static Disk* current() noexcept { return current_; }

  [[nodiscard]] Random& random() noexcept { return random_; }
  // Returns the path below the schedule's folder, or an empty text if the path is not on this disk.
  [[nodiscard]] std::string find(std::string path) const {
    if (path.starts_with(base_)) path.erase(0, base_.size());
    path = std::filesystem::path(path).lexically_normal().string();
    if (path.ends_with("/")) path.pop_back();
    return path == top_ || path.starts_with(top_ + "/") ? path : std::string();
  }
  // The same for an open file or folder.
  [[nodiscard]] std::string find(int descriptor) const {
    std::array<char, 512> text{};
    const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
    const ssize_t n = ::readlink(link.c_str(), text.data(), text.size());
    return n <= 0 ? std::string() : find(std::string(text.data(), static_cast<std::size_t>(n)));
  }

  // ---- changes that the system has made ----
  void made(const std::string& path, bool folder) {
    if (Node* const at = folder_of(path); at != nullptr && !at->names.contains(name_of(path)))
      rename_in(*at, name_of(path), std::make_shared<Node>(Node{folder}));
  }
  void removed(const std::string& path) {
    if (Node* const at = folder_of(path)) rename_in(*at, name_of(path), nullptr);
  }
  void renamed(const std::string& from, const std::string& to) {
    Node *const a = folder_of(from), *const b = folder_of(to);
    if (a == nullptr || b == nullptr) return;
    const auto found = a->names.find(name_of(from));
    if (found == a->names.end()) return;
    const std::shared_ptr<Node> node = found->second;
    // In one folder both names change at once.
    a->names.erase(found);
    b->names[name_of(to)] = node;
    if (a == b) {
      a->renames.push_back({{name_of(from), nullptr}, {name_of(to), node}});
    } else {
      a->renames.push_back({{name_of(from), nullptr}});
      b->renames.push_back({{name_of(to), node}});
    }
  }
  void written(const std::string& path, std::size_t offset, std::string_view bytes) {
    if (Node* const n = node(path)) n->writes.push_back({offset, std::string(bytes), false});
  }
  void cut(const std::string& path, std::size_t size) {
    if (Node* const n = node(path)) n->writes.push_back({size, {}, true});
  }
  // ok: false if fsync() fails.
  void synced(const std::string& path, bool ok) {
    Node* const n = node(path);
    if (n == nullptr) return;
    if (ok) keep(*n, n->writes.size(), n->renames.size());
    n->writes.clear();
    if (ok) n->renames.clear();
  }

  // ---- the power ----
  // Cuts the power: the files of the system become those that remain on the disk. Call it when no process runs.
  void lose_power() {
    lose(root_);
    current_ = nullptr;  // what follows is not a change by the job
    std::filesystem::remove_all(top_);
    put(root_, top_);
    current_ = this;
  }

 private:
  struct Write {
    std::size_t offset = 0;
    std::string bytes{};
    bool cuts = false;  // the file ends at the offset
  };
  struct Node;
  using Names = std::map<std::string, std::shared_ptr<Node>>;  // null in a change: the name is removed
  struct Node {
    bool folder = false;
    std::string saved{};           // on the disk
    std::vector<Write> writes{};   // since then
    Names names{}, saved_names{};  // now, and on the disk
    std::vector<Names> renames{};  // since then
  };

  [[nodiscard]] static std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }
  [[nodiscard]] Node* node(const std::string& path) {
    Node* at = &root_;
    for (std::size_t begin = top_.size() + 1; begin < path.size();) {
      const std::size_t end = std::min(path.find('/', begin), path.size());
      const auto found = at->names.find(path.substr(begin, end - begin));
      if (found == at->names.end()) return nullptr;
      at = found->second.get();
      begin = end + 1;
    }
    return at;
  }
  [[nodiscard]] Node* folder_of(const std::string& path) {
    return path.size() <= top_.size() ? nullptr : node(path.substr(0, path.rfind('/')));
  }
  static void set(Names& names, const std::string& name, const std::shared_ptr<Node>& to) {
    if (to == nullptr)
      names.erase(name);
    else
      names[name] = to;
  }
  static void rename_in(Node& folder, const std::string& name, const std::shared_ptr<Node>& to) {
    set(folder.names, name, to);
    folder.renames.push_back({{name, to}});
  }
  static void apply(std::string& content, const Write& w, std::size_t bytes) {
    if (w.cuts || content.size() < w.offset + bytes) content.resize(w.offset + bytes);
    content.replace(w.offset, bytes, w.bytes, 0, bytes);
  }
  // Lets the first changes reach the disk.
  static void keep(Node& n, std::size_t writes, std::size_t renames) {
    for (std::size_t i = 0; i < writes; ++i) apply(n.saved, n.writes[i], n.writes[i].bytes.size());
    for (std::size_t i = 0; i < renames; ++i)
      for (const auto& [name, to] : n.renames[i]) set(n.saved_names, name, to);
  }
  void lose(Node& n) {
    const std::size_t writes = random_.below(n.writes.size() + 1);
    keep(n, writes, random_.below(n.renames.size() + 1));
    if (writes < n.writes.size() && random_.one_in(2)) {
      const Write& torn = n.writes[writes];
      apply(n.saved, torn, random_.below(torn.bytes.size() + 1));
    }
    n.writes.clear();
    n.renames.clear();
    n.names = n.saved_names;
    for (const auto& [name, child] : n.names) lose(*child);
  }
  static void put(const Node& n, const std::string& path) {
    if (!n.folder) {
      std::ofstream(path, std::ios::binary) << n.saved;
      return;
    }
    std::filesystem::create_directory(path);
    for (const auto& [name, child] : n.names) put(*child, path + "/" + name);
  }

  inline static Disk* current_ = nullptr;

  std::string top_, base_;
  Random random_;
  Node root_{true};
};

}  // namespace tutti::simulation
