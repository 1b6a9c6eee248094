// SPDX-License-Identifier: MIT
// The program that test_checkpoint_killed.sh kills.
//   checkpoint_writer write RUN   saves step 1, step 2, step 2 again, keeping one; prints "saved <step>" each time
//   checkpoint_writer check RUN   prints "step <step>" of the newest valid checkpoint, or `none`; status 1 if any
//                                 visible one is incomplete or holds other bytes than were written
#include <unistd.h>

#include <iostream>
#include <string>
#include <string_view>

#include <tutti/io/checkpoint/checkpoint.hpp>

#include "checkpoint_state.hpp"

namespace {

using tutti::io::CheckpointStore;
using tutti::test::State;

constexpr std::size_t elements = 20000;  // more than the writer's buffer

void write(CheckpointStore& store) {
  for (const std::int64_t step : {1, 2, 2}) {
    const State state(step, elements);
    store.save(state.data());
    if (step == 2) store.mark_best(2, 0.5);
    const std::string line = "saved " + std::to_string(step) + "\n";
    if (::write(STDOUT_FILENO, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      throw tutti::Error("write");
  }
}

int check(const CheckpointStore& store) {
  for (const auto& path : store.list()) (void)store.load(path);
  const auto newest = store.load_newest_valid();
  if (!newest) {
    std::cout << "none\n";
    return 0;
  }
  const std::string difference = State(newest->step(), elements).difference(*newest);
  std::cout << "step " << newest->step() << (difference.empty() ? "" : " differs in " + difference) << '\n';
  if (const auto best = store.load_best(); best && best->step() != 2) return 1;
  return difference.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 3)
      tutti::fail<tutti::UsageError>("checkpoint_writer", "write or check, and a folder", "something else");
    CheckpointStore store(argv[2], 1);
    if (argv[1] == std::string_view("check")) return check(store);
    write(store);
    return 0;
  } catch (const tutti::Error& e) {
    std::cerr << e.what() << '\n';
    return e.exit_code();
  }
}
