// SPDX-License-Identifier: MIT
#include "tools/report/read_find_lr.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <tutti/core/error.hpp>

#include "tools/report/table.hpp"

namespace tutti::report_tool {

io::Json read_find_lr(const io::Path& path) {
  const std::string text = io::read_text_file(path, std::size_t{1} << 24);
  const io::Json from = io::parse_json(text, path.string(), {std::size_t{1} << 24, std::size_t{1} << 20, 4});
  const std::int64_t format = from.at("format", "find_lr").as_integer("format");
  if (format != 1)
    fail<DataError>("find_lr " + path.string(), "format 1", std::to_string(format),
                    "the file was written by another version of tutti");
  const auto column = [&](const char* name) -> const io::Json::Array& { return from.at(name).as_array(name); };
  const auto &lr = column("lr"), &loss = column("loss"), &smooth = column("smooth");
  if (lr.size() != loss.size() || lr.size() != smooth.size())
    fail<DataError>("find_lr " + path.string(), "columns of one length", "different lengths");
  io::Json::Array rates, losses, means;
  for (std::size_t i = 0; i < lr.size(); ++i) {
    if (loss[i].is_null() || smooth[i].is_null()) continue;
    const double rate = lr[i].as_double("lr");
    if (!(rate > 0 && std::isfinite(rate))) fail<DataError>("find_lr " + path.string(), "rates over 0", "another");
    rates.push_back(short_number(rate));
    losses.push_back(short_number(loss[i].as_double("loss")));
    means.push_back(short_number(smooth[i].as_double("smooth")));
  }
  return io::Json::object({{"suggested", short_number(from.at("suggested").as_double("suggested"))},
                           {"lr", std::move(rates)},
                           {"loss", std::move(losses)},
                           {"smooth", std::move(means)}});
}

}  // namespace tutti::report_tool
