// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/io/json/json.hpp>

#include "tools/report/run_data.hpp"

namespace tutti::report_tool {

// Returns JSON for an HTML script element. No string in it can end the element or begin a comment.
[[nodiscard]] std::string json_for_script(const io::Json& value);

// Returns the text in a form for use between tags and in quoted attributes.
[[nodiscard]] std::string html_text(std::string_view text);

[[nodiscard]] io::Json texts(const std::vector<std::string>& all);

// Limits for each of `runs` runs, so that the page stays small.
[[nodiscard]] inline std::size_t points_of_each(std::size_t runs) {
  return std::clamp<std::size_t>(4800 / std::max<std::size_t>(runs, 1), 100, 800);
}

[[nodiscard]] inline std::size_t images_of_each(std::size_t runs) {
  return std::clamp<std::size_t>(48 / std::max<std::size_t>(runs, 1), 2, 24);
}

// Returns a run in the form that the page's script reads.
[[nodiscard]] io::Json page_data(const RunData& r, std::size_t points);

// The parts of the page, from the files in report/page.
struct PageParts {
  std::string_view html, style, script;
};

// made: the time that the page shows.
[[nodiscard]] std::string make_page(const PageParts& parts, const std::vector<RunData>& runs, const std::string& title,
                                    const std::string& made);

}  // namespace tutti::report_tool
