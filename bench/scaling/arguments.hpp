// SPDX-License-Identifier: MIT
#pragma once

#include <cstdlib>
#include <map>
#include <string>

#include <tutti/comm/wire_type.hpp>
#include <tutti/core/error.hpp>

// The options of bench/scaling.
namespace tutti::bench {

struct Args {
  std::string model = "resnet18", precision = "f32", strategy = "mpi", wire = "f32", trace;
  int batch = 32, threads = 1, rounds = 3, bucket_mib = 16;
  double seconds = 5;
  bool plain = false;

  [[nodiscard]] WireType wire_type() const { return wire == "bf16" ? WireType::bf16 : WireType::same; }
};

inline Args parse(int argc, char** argv) {
  Args a;
  const std::map<std::string, std::string*> texts{{"--model", &a.model},
                                                  {"--precision", &a.precision},
                                                  {"--strategy", &a.strategy},
                                                  {"--wire", &a.wire},
                                                  {"--trace", &a.trace}};
  const std::map<std::string, int*> numbers{
      {"--batch", &a.batch}, {"--threads", &a.threads}, {"--rounds", &a.rounds}, {"--bucket-mib", &a.bucket_mib}};
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--plain") {
      a.plain = true;
      continue;
    }
    if (i + 1 >= argc) fail<UsageError>("scaling", "a value after " + name, "no value");
    const std::string value = argv[++i];
    if (const auto text = texts.find(name); text != texts.end())
      *text->second = value;
    else if (const auto number = numbers.find(name); number != numbers.end())
      *number->second = std::atoi(value.c_str());
    else if (name == "--seconds")
      a.seconds = std::atof(value.c_str());
    else
      fail<UsageError>("scaling", "an option of this program", name);
  }
  const auto require = [](const char* option, const std::string& value, const char* one, const char* other) {
    if (value != one && value != other) fail<UsageError>(option, {one, " or ", other}, {"'", value, "'"});
  };
  require("--model", a.model, "resnet18", "resnet20");
  require("--precision", a.precision, "f32", "bf16");
  require("--strategy", a.strategy, "mpi", "gloo");
  require("--wire", a.wire, "f32", "bf16");
  if (a.batch < 1 || a.threads < 1 || a.rounds < 1 || a.bucket_mib < 1 || !(a.seconds > 0))
    fail<UsageError>("scaling", "numbers above 0", "a smaller number");
  return a;
}

}  // namespace tutti::bench
