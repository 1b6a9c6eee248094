// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <tutti/core/dtype.hpp>
#include <tutti/strategy/parameter_server/wire/frames.hpp>

namespace tutti::ps {

// The answer to a worker for a finished round.
struct RoundAnswer {
  Frame frame;
  std::span<const std::byte> data;  // empty if it was written to the worker's window, or if the worker already has it
};

// c: a cell of the round's table, see round_table.hpp. session: session of the worker.
template <class Cell>
[[nodiscard]] RoundAnswer round_answer(const Cell& c, std::uint32_t worker, std::uint64_t session) {
  RoundAnswer a{c.frame, {}};
  a.frame.kind = FrameKind::answer;
  a.frame.packed = false;
  a.frame.worker = worker;
  a.frame.session = session;
  a.frame.window = c.parts[worker].window;
  a.frame.place = c.parts[worker].place;
  a.frame.has = c.parts[worker].has;
  if (a.frame.window == 0 && !a.frame.has) a.data = c.sum;
  return a;
}

// Formats the size and type of a frame's data.
[[nodiscard]] inline std::string size_text(const Frame& f) {
  return std::to_string(f.bytes) + " bytes " + std::string(tutti::name_of(f.dtype));
}

}  // namespace tutti::ps
