// SPDX-License-Identifier: MIT
#include "tools/report/page.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/io/utf8.hpp>
#include <tutti/version.hpp>

namespace tutti::report_tool {

std::string json_for_script(const io::Json& value) {
  const std::string plain = io::write_json(value);
  std::string out;
  out.reserve(plain.size() + plain.size() / 16);
  for (const char c : plain) switch (c) {
      case '<':
        out += "\\u003c";
        break;
      case '>':
        out += "\\u003e";
        break;
      case '&':
        out += "\\u0026";
        break;
      default:
        out += c;
    }
  return out;
}

std::string html_text(std::string_view text) {
  std::string out;
  for (const char c : utf8_text(std::string(text))) switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '\0':
        out += '?';
        break;
      default:
        out += c;
    }
  return out;
}

io::Json texts(const std::vector<std::string>& all) {
  io::Json::Array out;
  for (const std::string& t : all) out.emplace_back(utf8_text(t));
  return out;
}

io::Json page_data(const RunData& r, std::size_t points) {
  io::Json::Array changes, resumed;
  for (const Change& c : r.changes)
    changes.push_back(io::Json::object({{"step", short_number(c.step)},
                                        {"time", short_number(c.time)},
                                        {"ranks", short_number(c.ranks)},
                                        {"seconds", short_number(c.seconds)},
                                        {"batch", short_number(c.batch)}}));
  io::Json::Array shares;
  for (const ShareChange& c : r.shares)
    shares.push_back(io::Json::object({{"step", short_number(c.step)},
                                       {"time", short_number(c.time)},
                                       {"before", short_number(c.before)},
                                       {"after", short_number(c.after)},
                                       {"shares", utf8_text(c.shares)},
                                       {"note", utf8_text(c.note)}}));
  for (const double step : r.resumed) resumed.push_back(short_number(step));
  io::Json data = io::Json::object({{"name", utf8_text(r.name)},
                                    {"path", utf8_text(r.path)},
                                    {"status", utf8_text(r.status)},
                                    {"message", utf8_text(r.message)},
                                    {"top_k", utf8_text(r.top_k)},
                                    {"facts", r.facts},
                                    {"options", r.options},
                                    {"starts", r.starts},
                                    {"time", short_number(r.time)},
                                    {"steps", reduce(r.steps, points)},
                                    {"epochs", reduce(r.epochs, points)},
                                    {"warnings", texts(r.warnings)},
                                    {"more_warnings", r.more_warnings},
                                    {"views", r.views},
                                    {"evaluation", r.evaluation},
                                    {"find_lr", r.find_lr},
                                    {"problems", texts(r.problems)},
                                    {"notes", texts(r.notes)}});
  data.set("changes", std::move(changes)).set("resumed", std::move(resumed));
  return data.set("shares", std::move(shares));
}

std::string make_page(const PageParts& parts, const std::vector<RunData>& runs, const std::string& title,
                      const std::string& made) {
  io::Json::Array all;
  for (const RunData& r : runs) all.push_back(page_data(r, points_of_each(runs.size())));
  const std::pair<std::string_view, std::string> places[] = {
      {"{{title}}", html_text(title)},
      {"{{style}}", std::string(parts.style)},
      {"{{made}}", html_text(made)},
      {"{{data}}", json_for_script(io::Json::object({{"version", version}, {"runs", std::move(all)}}))},
      {"{{script}}", std::string(parts.script)}};
  // Replaces all marks in one pass over the template, so that inserted text is never replaced again.
  std::string page;
  std::string_view rest = parts.html;
  while (!rest.empty()) {
    const std::size_t open = rest.find("{{");
    page += rest.substr(0, open);
    if (open == std::string_view::npos) break;
    rest.remove_prefix(open);
    const auto* place =
        std::find_if(std::begin(places), std::end(places), [&](const auto& p) { return rest.starts_with(p.first); });
    if (place == std::end(places)) {
      page += rest.substr(0, 2);
      rest.remove_prefix(2);
    } else {
      page += place->second;
      rest.remove_prefix(place->first.size());
    }
  }
  return page;
}

}  // namespace tutti::report_tool
