// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <tutti/data/audit.hpp>
#include <tutti/data/check_audit.hpp>
#include <tutti/data/sampler.hpp>

#include "temp_folder.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

AuditResult check(const TempFolder& folder, const std::string& text, std::int64_t size = 4) {
  write_text(folder / "audit", text);
  const std::vector<std::string> paths{(folder / "audit").string()};
  return check_audit(paths, 0, size);
}

}  // namespace

TEST_CASE("the audit of a run with 4, 3 and 5 ranks shows every sample once an epoch") {
  const TempFolder folder;
  constexpr std::int64_t n = 200;
  std::vector<std::string> paths;
  Position p;
  std::int64_t step = 0;
  for (const auto& [world, steps] : {std::pair{4, 3}, std::pair{3, 4}, std::pair{5, 20}}) {
    for (int s = 0; s < steps; ++s, ++step) {
      for (int r = 0; r < world; ++r) {
        const auto path = (folder / ("rank" + std::to_string(r))).string();
        if (std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
        Sampler sampler(n, 3, true);
        AuditLog log(path);  // the file is opened again for each step; the log appends to it
        log.step(p.epoch, step, r, sampler.share(p, {16, r, world}).indices);
      }
      p = advance(p, n, 16);
    }
  }
  REQUIRE(p.epoch == 2);
  for (const std::int64_t epoch : {0, 1}) {
    const auto result = check_audit(paths, epoch, n);
    CHECK(result.exactly_once());
    CHECK(result.lines > 0);
  }
  const auto third = check_audit(paths, 2, n);
  CHECK_FALSE(third.exactly_once());
  CHECK(third.missing == n - p.consumed);
  CHECK(third.repeated == 0);
  CHECK(third.examples.size() == 8);
  // If a file is lost, the check fails.
  paths.pop_back();
  CHECK_FALSE(check_audit(paths, 1, n).exactly_once());
}

TEST_CASE("the lines of an audit file have the documented format") {
  const TempFolder folder;
  {
    AuditLog log((folder / "a").string());
    CHECK(log.empty());
    const std::vector<std::int64_t> indices{5, 0, 123456789012};
    log.step(1, 20, 3, indices);
    CHECK_FALSE(log.empty());
    log.step(1, 21, 3, {});
    log.rollback(1, 21);
    CHECK(text_of(folder / "a") == "1 20 3: 5 0 123456789012\n1 21 3:\nrollback 1 21\n");  // before the log closes
  }
  // AuditLog removes the incomplete line that a killed process left.
  write_text(folder / "b", "0 0 0: 1 2\n0 1 0: 3");
  AuditLog(folder / "b").step(0, 1, 0, std::vector<std::int64_t>{3, 0});
  CHECK(text_of(folder / "b") == "0 0 0: 1 2\n0 1 0: 3 0\n");
  CHECK_THROWS_AS(AuditLog(folder / "none" / "a"), DataError);
}

TEST_CASE("missing and repeated samples are counted") {
  const TempFolder folder;
  CHECK(check(folder, "0 0 0: 3 1\n0 1 0: 0 2\n").exactly_once());
  const auto missing = check(folder, "0 0 0: 3 1\n0 1 0: 0\n");
  CHECK(missing.missing == 1);
  CHECK(missing.repeated == 0);
  CHECK(missing.examples == std::vector<std::int64_t>{2});
  const auto repeated = check(folder, "0 0 0: 3 1 3\n0 1 0: 0 2 3\n1 2 0: 0\n");
  CHECK(repeated.missing == 0);
  CHECK(repeated.repeated == 2);
  CHECK(repeated.examples == std::vector<std::int64_t>{3});
}

TEST_CASE("steps that are repeated after a rollback count once") {
  const TempFolder folder;
  const std::string first = "0 0 0: 0\n0 1 0: 1\n0 2 0: 2\n", again = "0 1 0: 1 2\n0 2 0: 3\n";
  CHECK_FALSE(check(folder, first + again).exactly_once());
  CHECK(check(folder, first + "rollback 0 1\n" + again).exactly_once());
  CHECK_FALSE(check(folder, first + "rollback 0 2\n" + again).exactly_once());
  // A rollback to an earlier epoch removes all lines of the current epoch. A rollback to a later epoch removes no
  // lines.
  write_text(folder / "b", "1 5 0: 0 1\nrollback 0 3\n1 5 0: 0 1\nrollback 2 6\n");
  const std::vector<std::string> paths{(folder / "b").string()};
  CHECK(check_audit(paths, 1, 2).exactly_once());
}

TEST_CASE("only the audit files of ranks that a smaller run no longer has are rolled back") {
  const TempFolder folder;
  const std::string old = "0 0 0: 0\n0 1 0: 1\n";
  for (const char* name : {"audit-rank0.txt", "audit-rank2.txt", "audit-rank11.txt", "audit-rank2.txt.old",
                           "audit-rank.txt", "audit-rank2x.txt", "audit-rank-3.txt", "audit-rank99999999999.txt"})
    write_text(folder / name, old);
  roll_back_gone_ranks(folder.path(), 2, 0, 1);
  for (const int rank : {2, 11}) {
    CAPTURE(rank);
    CHECK(text_of(audit_file(folder.path(), rank)) == old + "rollback 0 1\n");
  }
  for (const char* name : {"audit-rank0.txt", "audit-rank2.txt.old", "audit-rank.txt", "audit-rank2x.txt",
                           "audit-rank-3.txt", "audit-rank99999999999.txt"}) {
    CAPTURE(name);
    CHECK(text_of(folder / name) == old);
  }
}

TEST_CASE("damaged audit files are refused, and the error names file and line") {
  const TempFolder folder;
  for (const std::string bad : {"0 1 0: 1 2", "0 1 0 1 2\n", "0 1 0: 1  2\n", "0 1 0: x\n", "0 1 0: -1\n", "0 1 0: 4\n",
                                "0 1\n", "\n", "rollback 1\n", "rollback 0 1 2\n", "0 1 0:1\n", "-1 0 0: 1\n"}) {
    const auto message = message_of<DataError>([&] { (void)check(folder, "0 0 0: 0\n" + bad); });
    CAPTURE(bad);
    CHECK(contains(message, "audit line 2"));
  }
  const std::vector<std::string> none{(folder / "none").string()};
  CHECK_THROWS_AS((void)check_audit(none, 0, 4), DataError);
}

TEST_CASE("lines of an earlier generation do not count after the first step of a later generation") {
  const TempFolder folder;
  {
    AuditLog log((folder / "a").string());
    log.begin_generation(1, 2, 0, 0);
    log.write();
    log.step({0, 1, 0, 1, std::vector<std::int64_t>{0}});
    log.begin_generation(2, 1, 0, 1);
    log.closed({0, 1, 0, 2, std::vector<std::int64_t>{0}});
    log.closed({0, 1, 1, 2, std::vector<std::int64_t>{1}});
    log.write();
    log.step({0, 2, 0, 2, std::vector<std::int64_t>{2, 3}});
  }
  CHECK(text_of(folder / "a") ==
        "generation 1 2 0 0\n0 1 0 1: 0\ngeneration 2 1 0 1\nclosed 0 1 0 2: 0\nclosed 0 1 1 2: 1\n0 2 0 2: 2 3\n");
  CHECK(check(folder, text_of(folder / "a")).exactly_once());
  // A process that was stopped and removed from the job resumes and writes two late lines: one for a step that another
  // process closed, and one for a step that was repeated.
  const std::string late = "0 1 1 1: 1\n0 2 1 1: 3\n";
  CHECK(check(folder, text_of(folder / "a") + late).exactly_once());
  CHECK(check(folder, late + text_of(folder / "a")).exactly_once());
  // The removed rank did not write the line of its samples, and no other rank wrote a "closed" line for them.
  const auto missing = check(folder, "generation 1 2 0 0\n0 1 0 1: 0\ngeneration 2 1 0 1\n0 2 0 2: 2 3\n");
  CHECK(missing.missing == 1);
  CHECK(missing.examples == std::vector<std::int64_t>{1});
  const auto twice = check(folder, text_of(folder / "a") + "0 3 0 2: 3\n");
  CHECK(twice.repeated == 1);
  CHECK(contains(twice.where, "audit line 6"));
  CHECK(contains(twice.where, "audit line 7"));
  // A coordinator dies while it writes the lines of its generation. The next coordinator writes the "closed" line
  // again.
  CHECK(check(folder,
              "generation 1 2 0 0\n0 1 0 1: 0\ngeneration 2 2 0 1\nclosed 0 1 0 2: 0\ngeneration 3 1 0 1\nclosed 0 "
              "1 0 3: 0\nclosed 0 1 1 3: 1\n0 2 0 3: 2 3\n")
            .exactly_once());
  // The first run is resumed from the last complete step. The second run starts again from the beginning.
  CHECK(check(folder, "generation 1 1 0 0\n0 1 0 1: 0 1\n0 2 0 1: 2\nrollback 0 2\ngeneration 2 1 0 1\n0 2 0 2: 2 3\n")
            .exactly_once());
  CHECK(check(folder, "generation 1 1 0 0\n0 1 0 1: 0\nrollback 0 1\n0 1 0: 0 1\n0 2 0: 2 3\n").exactly_once());
  // A line without a generation belongs to the time before the first generation.
  CHECK(check(folder, "0 1 0: 0 1\nrollback 0 2\ngeneration 1 1 0 1\n0 2 0 1: 2 3\n").exactly_once());
}

TEST_CASE("audit files with impossible generations are refused, and the error names file and line") {
  const TempFolder folder;
  for (const std::string bad :
       {"0 2 0 3: 1\n", "0 1 0 2: 1\n", "0 2 1 2: 1\n", "closed 0 2 0 2: 1\n", "closed 0 1 0: 1\n",
        "generation 0 1 0 0\n", "generation 3 0 0 1\n", "generation 3 1 0\n", "generation 3 1 0 1 1\n",
        "generation 2 1 0 1\n", "generation x 1 0 1\n", "closed\n", "0 2 0 2 2: 1\n", "0 2 0 : 1\n"}) {
    const auto message = message_of<DataError>([&] { (void)check(folder, "generation 2 1 0 1\n0 2 0 2: 0\n" + bad); });
    CAPTURE(bad);
    CHECK(contains(message, "audit line 3"));
  }
  // Two files with the same generation contradict each other.
  write_text(folder / "one", "generation 1 1 0 0\n");
  const std::vector<std::string> both{(folder / "one").string(), (folder / "one").string()};
  CHECK_THROWS_AS((void)check_audit(both, 0, 4), DataError);
}

TEST_CASE("the newest generation of an audit file is the largest number, wherever it is") {
  const TempFolder folder;
  const auto newest = [&](const std::string& text) {
    write_text(folder / "audit", text);
    return latest_audited_generation(folder / "audit");
  };
  CHECK(latest_audited_generation(folder / "no-such-file") == 0);
  CHECK(newest("") == 0);
  CHECK(newest("0 1 0: 0 1\nrollback 0 2\n") == 0);
  CHECK(newest("generation 3 1 0 8\n1 9 0 3: 2\nrollback 1 9\ngeneration 2 1 1 8\n1 9 0 2: 2\ngenera") == 3);
  CHECK(newest("generation x 1 0 8\ngeneration 99999999999999999999 1 0 8\n") == 0);
}
