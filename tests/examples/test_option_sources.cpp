// SPDX-License-Identifier: MIT
// Tests options from configuration files and the environment.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "data/temp_folder.hpp"
#include "option_lines.hpp"
#include "tools/trainer/check.hpp"
#include "tools/trainer/cli.hpp"
#include "tools/trainer/config_file.hpp"
#include "tools/trainer/options_json.hpp"
#include "tools/trainer/recipe.hpp"

using namespace tutti;
using namespace tutti::trainer;
using namespace tutti::trainer::lines;
using test::contains;
using test::message_of;

TEST_CASE("a configuration file has the documented precedence, spellings and forms") {
  test::TempFolder folder;
  const auto file = (folder / "a.toml").string();
  test::write_text(file,
                   "# a comment\n; another\n\nepochs = 7 # seven\nbatch_size=64\nlr = 0.3\ndata = \"/my \\\"data\\\" # "
                   "here\"\nlr-step-epochs = [3, 5]\nrandom-mirror = false\nrandom_crop = 0\nnum-layers = '32'\n"
                   "resume = \"best\"\nrun-dir = r\nrgb-mean = 1,2,3\n");
  RunOptions o = options("--config " + file + " --lr 0.5");
  CHECK(o.epochs == 7);
  CHECK(o.batch_size == 64);
  CHECK(o.lr == 0.5);
  CHECK(o.data_dir == "/my \"data\" # here");
  CHECK(o.lr_step_epochs == "3,5");
  CHECK_FALSE(o.random_mirror);
  CHECK_FALSE(o.random_crop);
  CHECK(o.depth == 32);
  CHECK(o.resume == "best");
  CHECK(o.rgb_mean == "1,2,3");
  CHECK(options("--random-mirror --config=" + file).random_mirror);

  test::write_text(file, "preset = cifar-resnet50-28\ndepth = 20\n");
  o = options("--config " + file);
  CHECK(o.network == "resnet_preact");
  CHECK(o.depth == 20);
}

TEST_CASE("the error for a bad configuration file names the line or the key") {
  test::TempFolder folder;
  const auto file = (folder / "a.toml").string();
  const std::pair<const char*, const char*> cases[] = {
      {"epochs = 3\nno_such_key = 4\n", "line 2"},
      {"no_such_key = 4\n", "--no-such-key"},
      {"epohcs = 4\n", "did you mean --epochs"},
      {"x=1\n", "--x"},
      {"epochs = abc\n", "[--epochs]"},
      {"epochs = 3, 4\n", "[--epochs]"},
      {"epochs 3\n", "line 1"},
      {"epochs =\n", "line 1"},
      {"a\n", "line 1"},
      {"[data]\nepochs = 3\n", "sections"},
      {"data = \"open\n", "line 1"},
      {"data = \"a\" b\n", "line 1"},
      {"data = \"\\n\"\n", "line 1"},
      {"rgb-mean = [1, 2\n", "line 1"},
      {"epochs = 3\nepochs = 4\n", "epochs again"},
      {"epochs = 3\nnum-epochs = 4\n", "line 2: --num-epochs] expected the value of --epochs"},
      {"config = \"b.toml\"\n",
       "line 1] expected an option, got --config, which is not an option. hint: it is allowed on the command line "
       "only"},
      {"\x1b[31mred = 3\n", "line 1] expected an option, got --\\x1b[31mred"},
      {"\x7f"
       "ELF\xff\n",
       "line 1] expected name = value, got '\\x7fELF\\xff'"},
      {"print-config = true\n", "line 1"},
  };
  for (const auto& wrong : cases) {
    const auto &text = std::get<0>(wrong), &named = std::get<1>(wrong);
    CAPTURE(text);
    test::write_text(file, text);
    const std::string message = error("--config " + file);
    CHECK_MESSAGE(contains(message, named), "got: ", message);
  }
}

TEST_CASE("the printed configuration gives the same options when it is read") {
  test::TempFolder folder;
  const auto file = (folder / "a.toml").string();
  for (const char* line :
       {"", "--preset cifar-resnet50-28 --lr 0.1", "--lr-step-epochs 5,7 --lr-factor 0.3 --epochs 9 --no-random-crop",
        "--data /a\"b\\c --run-dir r --resume=best --seed 18446744073709551615 --wd 1e-7 --image-shape 3,28,28",
        "--pad-mode reflect --pad-size 3", "--load-epoch 3 --model-prefix 'm' --keep 4 --dry-run --audit 1",
        "--gpus= --epochs 3"}) {
    CAPTURE(line);
    const auto o = parse(words(line));
    REQUIRE(o);
    const std::string text = config_text(*o);
    test::write_text(file, text);
    const auto again = parse({"--config", file});
    REQUIRE(again);
    CHECK(config_text(*again) == text);
    RunOptions a = *o, b = *again;
    check(a);
    check(b);
    CHECK(config_text(a) == config_text(b));
    CHECK(options_json(a) == options_json(b));
    // Options that check() has changed can be written to a file, and mean the same when they are read.
    test::write_text(file, config_text(a));
    RunOptions c = options("--config " + file);
    CHECK(config_text(c) == config_text(a));
  }
}

TEST_CASE("an environment variable sets the data folder, unless the file or the command line does") {
  test::TempFolder folder;
  ::setenv("TUTTI_DATA", "/env", 1);
  RunOptions o = options("");
  CHECK(o.data_dir == "/env");
  CHECK(o.data_dir_from_environment);
  o = options("--data /arg");
  CHECK(o.data_dir == "/arg");
  CHECK_FALSE(o.data_dir_from_environment);
  test::write_text(folder / "c", "data = /file\n");
  CHECK(options("--config " + (folder / "c").string()).data_dir == "/file");
  ::unsetenv("TUTTI_DATA");
}

TEST_CASE("environment variables set every option, unless the file or the command line does") {
  struct Set {
    std::string name;
    Set(std::string n, const char* value) : name(std::move(n)) { ::setenv(name.c_str(), value, 1); }
    Set(const Set&) = delete;
    Set& operator=(const Set&) = delete;
    ~Set() { ::unsetenv(name.c_str()); }
  };
  test::TempFolder folder;
  test::write_text(folder / "c", "num-layers = 32\nwd = 0.1\n");
  const std::string config = "--config " + (folder / "c").string();
  {
    const Set a("TUTTI_NUM_EPOCHS", "7"), b("TUTTI_DEPTH", "44"), c("TUTTI_WD", "0.2"), d("TUTTI_RANDOM_MIRROR", "0"),
        e("TUTTI_LR", ""), f("TUTTI_GPUS", ""), g("TUTTI_SIZE", "4"), h("TUTTI_PCA_NOISE", "0");
    RunOptions o = options(config + " --wd 0.3");
    CHECK(o.epochs == 7);
    CHECK(o.depth == 32);
    CHECK(o.wd == 0.3);
    CHECK_FALSE(o.random_mirror);
    CHECK(o.lr == 0.1);
    CHECK_FALSE(o.gpus);
    CHECK(o.notes.size() == 2);
    CHECK(contains(o.notes[0] + o.notes[1], "--epochs comes from the environment's TUTTI_NUM_EPOCHS"));
    CHECK(options("").depth == 44);
    CHECK(options("--random-mirror").random_mirror);
  }
  {
    const Set preset("TUTTI_PRESET", "cifar-resnet50-28"), depth("TUTTI_DEPTH", "110");
    const RunOptions o = options("");
    CHECK(o.network == "resnet_preact");
    CHECK(o.depth == 110);
  }
  {
    const Set file("TUTTI_CONFIG", (folder / "c").c_str());
    CHECK(options("").depth == 32);
    CHECK(contains(error("--config /no/such/file"), "/no/such/file"));
  }
  const std::vector<std::array<const char*, 3>> bad{
      {"TUTTI_EPOHCS", "3", "environment TUTTI_EPOHCS] expected an option of train_cifar10"},
      {"TUTTI_EPOHCS", "3", "did you mean TUTTI_EPOCHS"},
      {"TUTTI_epochs", "3", "did you mean TUTTI_EPOCHS"},
      {"TUTTI_HELP", "1", "TUTTI_HELP"},
      {"TUTTI_WHATEVER_ELSE", "1", "unset TUTTI_WHATEVER_ELSE"},
      {"TUTTI_EPOCHS", "3x", "[environment TUTTI_EPOCHS] expected an integer"},
      {"TUTTI_PCA_NOISE", "1", "[environment TUTTI_PCA_NOISE]"},
      {"TUTTI_EVAL_INTERVAL", "1", "TUTTI_EVAL_INTERVAL"}};
  for (const auto& wrong : bad) {
    const auto &name = std::get<0>(wrong), &value = std::get<1>(wrong), &named = std::get<2>(wrong);
    const Set set(name, value);
    CAPTURE(name);
    const std::string message = error("");
    CHECK_MESSAGE(contains(message, named), "got: ", message);
  }
  const Set one("TUTTI_EPOCHS", "3"), other("TUTTI_NUM_EPOCHS", "4");
  CHECK(contains(error(""), "[environment TUTTI_NUM_EPOCHS: --num-epochs] expected the value of --epochs"));
}
