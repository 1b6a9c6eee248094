// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <tutti/core/error.hpp>
#include <tutti/core/text_part.hpp>

namespace tutti::cuda {

// The choices between kernels of libraries that a process has made, by problem, as a text that other ranks of a job
// take (Backend::choices). Measurements differ between hosts, so without it ranks could choose kernels that round
// differently.
class KernelChoices {
 public:
  struct Choice {
    bool measured = false;
    std::string text;  // empty: it has no form as text, so other ranks cannot take it
    friend bool operator==(const Choice&, const Choice&) = default;
  };

  // Records the choice for a problem. Replaces an earlier one.
  void record(const std::string& problem, Choice choice) { made_.insert_or_assign(problem, std::move(choice)); }
  // Returns the choice for a problem that was recorded or taken, or null. Null also before take().
  [[nodiscard]] const Choice* find(const std::string& problem) const {
    if (!shared_) return nullptr;
    const auto at = made_.find(problem);
    return at == made_.end() ? nullptr : &at->second;
  }
  void forget(const std::string& problem) { made_.erase(problem); }
  // Returns whether all ranks must take the libraries' own guess for a problem, which is the same on equal devices:
  // what was measured has no form as text.
  [[nodiscard]] bool must_guess(const std::string& problem) const { return guessed_.contains(problem); }

  [[nodiscard]] bool empty() const noexcept { return made_.empty(); }
  // Returns all choices, or an empty text if there is no choice. device: what must be equal for a choice to be of
  // use: the GPU, the versions of the libraries and the options.
  [[nodiscard]] std::string text(std::string_view device) const {
    std::string all;
    if (empty()) return all;
    add(all, device);
    add(all, std::to_string(made_.size()));
    for (const auto& [problem, choice] : made_) {
      add(all, problem);
      add(all, choice.measured ? "measured" : "guessed");
      add(all, choice.text);
    }
    return all;
  }

  struct Taken {
    bool other_device = false;  // the choices are for another kind of device, and were not taken
    std::size_t changed = 0;    // choices of this process that were replaced, or are to be made again
  };
  // Takes the choices of the rank that all ranks follow, from its text(); that rank calls it too. Own choices remain
  // for problems that the text does not contain. If a measured choice has no form as text, all ranks guess instead.
  // Throws DataError, before any change, if the text is damaged.
  Taken take(std::string_view device, std::string_view text) {
    std::map<std::string, Choice> theirs;
    Taken taken;
    taken.other_device = next(text) != device;
    const std::string_view count = next(text);
    while (!text.empty()) {
      std::string problem(next(text));
      const std::string_view how = next(text);
      if (how != "measured" && how != "guessed") fail_damaged("another word");
      theirs.insert_or_assign(std::move(problem), Choice{how == "measured", std::string(next(text))});
    }
    if (std::to_string(theirs.size()) != count) fail_damaged({theirs.size(), " choices"});
    shared_ = true;
    if (taken.other_device) return taken;
    for (auto at = made_.begin(); at != made_.end();) {
      const auto found = theirs.find(at->first);
      bool guess = false;
      if (found != theirs.end() && found->second.text.empty()) {
        guess = found->second.measured || at->second.measured;
        theirs.erase(found);
      } else if (found != theirs.end() && found->second.text == at->second.text) {
        theirs.erase(found);
      }
      if (guess) guessed_.insert(at->first);
      taken.changed += guess ? 1 : 0;
      at = guess ? made_.erase(at) : std::next(at);
    }
    for (auto& [problem, choice] : theirs) {
      if (choice.text.empty()) continue;
      const bool is_new = made_.insert_or_assign(problem, std::move(choice)).second;
      taken.changed += is_new ? 0 : 1;
    }
    return taken;
  }
  // Prints a line if the choices are for another device, once in a process.
  void report(const Taken& t) {
    if (!t.other_device || std::exchange(told_, true)) return;
    std::fprintf(stderr,
                 "tutti: this rank's GPU, libraries or options differ from those of the rank that chooses library "
                 "kernels for all ranks: this rank keeps its own choices, which may round differently\n");
  }

 private:
  // A text as its length, a line feed, and its bytes.
  static void add(std::string& to, std::string_view text) {
    to.append(std::to_string(text.size())).append("\n").append(text);
  }
  // Removes the first text of `from` and returns it.
  static std::string_view next(std::string_view& from) {
    std::size_t bytes = 0;
    const std::size_t line = from.find('\n');
    const char* const end = from.data() + (line == std::string_view::npos ? 0 : line);
    const auto [stop, error] = std::from_chars(from.data(), end, bytes);
    if (error != std::errc{} || stop != end || bytes > from.size() - line - 1) fail_damaged({from.size(), " bytes"});
    const std::string_view text = from.substr(line + 1, bytes);
    from.remove_prefix(line + 1 + bytes);
    return text;
  }

  [[noreturn]] static void fail_damaged(const TextPart& got) {
    fail<DataError>("choices of kernels", "a list of choices", got, "all ranks must run the same version of tutti");
  }

  std::map<std::string, Choice> made_;
  std::set<std::string> guessed_;
  bool shared_ = false, told_ = false;
};

// A library class that makes such choices. choices() returns the text; take_choices() returns true if choices of this
// process were replaced.
template <class L>
concept SharesChoices = requires(L& library, std::string_view text) {
  { library.choices() } -> std::same_as<std::string>;
  { library.take_choices(text) } -> std::same_as<bool>;
};

}  // namespace tutti::cuda
