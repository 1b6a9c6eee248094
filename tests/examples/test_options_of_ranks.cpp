// SPDX-License-Identifier: MIT
// Tests options for several processes.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "data/temp_folder.hpp"
#include "option_lines.hpp"
#include "tools/trainer/check.hpp"
#include "tools/trainer/check_strategy_options.hpp"
#include "tools/trainer/options_json.hpp"
#include "tools/trainer/recipe.hpp"

using namespace tutti;
using namespace tutti::trainer;
using namespace tutti::trainer::lines;
using test::contains;
using test::message_of;

TEST_CASE("a job of several processes is refused without a strategy for several processes") {
  CHECK(contains(error("--kv-store dist_sync", 4), "[--kv-store]"));
  CHECK(contains(error("", 4), "4 that the launcher started"));
  CHECK(contains(error("--strategy solo", 4), "[--strategy] expected mpi, gloo, nccl or ps for the 4 processes"));
}

TEST_CASE("options that do not apply to a strategy are refused, or named in a note") {
  const std::vector<std::string> built{"solo", "mpi", "nccl"};
  const auto checked = [&](const std::string& line, int processes) {
    auto o = parse(words(line));
    check(*o, {processes, built});
    return *o;
  };
  for (const char* option : {"--comm-wire bf16", "--no-hierarchical", "--no-shared-memory"}) {
    const std::string nccl = std::string("--backend cuda --strategy nccl ") + option;
    const std::string said = message_of<UsageError>([&] { (void)checked(nccl, 2); });
    CHECK_MESSAGE(contains(said, "expected strategy mpi with it, because it has no effect with nccl"), said);
    CHECK(contains(said, words(option)[0]));
    CHECK_NOTHROW((void)checked(std::string("--strategy mpi ") + option, 2));
  }
  CHECK_NOTHROW((void)checked("--backend cuda --strategy nccl --hierarchical --comm-wire f32 --bucket-mib 4", 2));
  for (const char* option :
       {"--comm-wire bf16", "--no-hierarchical", "--no-shared-memory", "--bucket-mib 4", "--comm-deadline 5"}) {
    const std::string said =
        message_of<UsageError>([&] { (void)checked(std::string("--strategy solo ") + option, 1); });
    CHECK_MESSAGE(contains(said, "expected a strategy of several processes with it, got --strategy solo"), said);
    // The same command line is valid for one process and for many.
    const auto notes = checked(option, 1).notes;
    REQUIRE(notes.size() == 1);
    CHECK(notes[0] == "one process trains alone, so these have no effect: " + words(option)[0]);
  }
  CHECK(contains(message_of<UsageError>([&] { (void)checked("--gc-threshold 0.1", 1); }), "--gc-threshold"));
}

TEST_CASE("two-bit gradients need parameter servers and a fixed loss scale") {
  const auto checked = [](const std::string& line) {
    auto o = parse(words("--batch-size 16 " + line));
    check(*o, {4, {"solo", "mpi", "ps", "ps_async"}, false, 1});
    return *o;
  };
  const auto said = [&](const std::string& line) { return message_of<UsageError>([&] { (void)checked(line); }); };
  CHECK(contains(said("--gc-type 2bit --strategy mpi"), "[--gc-type] expected a parameter-server strategy"));
  for (const std::string strategy : {"ps", "ps_async"}) {
    const std::string line = "--gc-type 2bit --strategy " + strategy;
    CHECK(trainer::detail::gradient_threshold(checked(line)) == static_cast<float>(0.5 / 64));
    RunOptions scaled = checked(line + " --gc-threshold 2");
    scaled.loss_scale = "8";
    CHECK(trainer::detail::gradient_threshold(scaled) == 0.25F);
    scaled.loss_scale = "dynamic";
    CHECK(contains(message_of<UsageError>([&] { (void)trainer::detail::gradient_threshold(scaled); }),
                   "[--gc-type] expected none with a dynamic loss scale"));
    CHECK(contains(said(line + " --comm-wire bf16"), "[--gc-type] expected none with --comm-wire bf16"));
    CHECK(contains(said(line + " --gc-threshold 0"), "--gc-threshold"));
    CHECK(trainer::detail::gradient_threshold(checked("--strategy " + strategy)) == 0);
  }
}

TEST_CASE("a note says that a single worker sends no gradients to servers that only add gradients") {
  const auto notes = [](const std::string& line, int workers, bool elastic = false) {
    auto o = parse(words("--dataset synthetic " + line));
    check(*o, {workers, {"solo", "ps", "ps_async"}, false, 1, elastic});
    return o->notes;
  };
  CHECK(notes("--strategy ps --gc-type 2bit", 1) ==
        std::vector<std::string>{
            "no effect: --gc-type 2bit: the only worker of strategy ps sends no gradients to its servers"});
  CHECK(notes("--kv-store dist_sync --gc-type 2bit", 1).size() == 1);
  CHECK(notes("--strategy ps --comm-wire bf16", 1).size() == 1);
  CHECK(notes("--strategy ps --gc-type 2bit", 2).empty());
  CHECK(notes("--strategy ps_async --gc-type 2bit", 1).empty());
  if (changes_members("ps")) CHECK(notes("--strategy ps --gc-type 2bit", 1, true).empty());
}

TEST_CASE("a note names the environment variables of MXNet's servers that have no effect, once") {
  const auto notes = [](const std::vector<std::string>& set) {
    RunOptions o;
    note_ps_variables(o, set);
    return o.notes;
  };
  CHECK(notes({"HOME", "DMLC_ROLE", "DMLC_NODE_HOST", "PS_KEY"}).empty());
  CHECK(notes({"DMLC_INTERFACE", "PS_HEARTBEAT_INTERVAL", "PS_VERBOSE"}) ==
        std::vector<std::string>{"no effect: DMLC_INTERFACE, PS_HEARTBEAT_INTERVAL, PS_VERBOSE; set a host's "
                                 "address in DMLC_NODE_HOST or the hosts file"});
  CHECK(contains(notes({"PS_HEARTBEAT_TIMEOUT"}).at(0), "--rank-timeout"));
}

TEST_CASE("Horovod's environment variables take effect, or are named in a note") {
  using Variables = std::vector<std::pair<std::string, std::string>>;
  const auto applied = [](RunOptions o, const std::string& strategy, const Variables& v, int processes = 2) {
    o.strategy = strategy;
    apply_horovod_variables(o, v, processes);
    return o;
  };
  auto o = applied({}, "mpi", {{"FUSION_THRESHOLD", "33554432"}, {"HIERARCHICAL_ALLREDUCE", "0"}});
  CHECK(o.bucket_mib == 32);
  CHECK_FALSE(o.hierarchical);
  CHECK(o.notes == std::vector<std::string>{"HOROVOD_FUSION_THRESHOLD=33554432: --bucket-mib 32",
                                            "HOROVOD_HIERARCHICAL_ALLREDUCE=0: --no-hierarchical"});
  CHECK_FALSE(applied({}, "gloo", {{"HIERARCHICAL_ALLREDUCE", "0"}}).hierarchical);
  o = applied({}, "nccl",
              {{"CYCLE_TIME", "1"}, {"FUSION_THRESHOLD", "0"}, {"HIERARCHICAL_ALLREDUCE", "1"}, {"TIMELINE", "t"}});
  CHECK(o.bucket_mib == 1);
  CHECK(o.notes.back() ==
        "no effect: HOROVOD_CYCLE_TIME, HOROVOD_HIERARCHICAL_ALLREDUCE, HOROVOD_TIMELINE (strategy nccl)");
  CHECK(o.notes.size() == 2);
  // The command line has precedence over the environment.
  RunOptions said;
  said.bucket_mib = 4;
  CHECK(applied(said, "mpi", {{"FUSION_THRESHOLD", "33554432"}}).bucket_mib == 4);
  CHECK(applied({}, "solo", {{"FUSION_THRESHOLD", "x"}}).notes.size() == 1);
  for (const auto& variable : Variables{{"FUSION_THRESHOLD", "64MB"},
                                        {"FUSION_THRESHOLD", "-1"},
                                        {"FUSION_THRESHOLD", ""},
                                        {"HIERARCHICAL_ALLREDUCE", "2"},
                                        {"HIERARCHICAL_ALLREDUCE", "true"}})
    CHECK(contains(message_of<UsageError>([&] { (void)applied({}, "mpi", {variable}); }),
                   "environment HOROVOD_" + variable.first));
  CHECK(contains(message_of<UsageError>([&] { (void)applied({}, "solo", {{"SIZE", "4"}}, 1); }), "tutti-launch -n 4"));
  CHECK(applied({}, "solo", {{"SIZE", "1"}}, 1).notes.size() == 1);
}

TEST_CASE("the options that ranks compare do not depend on the number of ranks") {
  for (const char* line : {"--dataset synthetic", "--dataset synthetic --global-batch-size 96 --optimizer adamw",
                           "--dataset synthetic --macrobatch-size 1024", "--dataset synthetic --recipe fast",
                           "--dataset synthetic --lr 0.1 --warmup-epochs 1"}) {
    CAPTURE(std::string(line));
    const RunOptions one = options(line);
    RunOptions four = *parse(words(line));
    four.dry_run = true;
    four.dry_run_ranks = 4;
    check(four, {1});
    four.dry_run = false;
    four.dry_run_ranks = one.dry_run_ranks;
    CHECK(one.derived == four.derived);
    const io::Json a = options_json(one), b = options_json(four);
    int differ = 0;
    for (const auto& [name, value] : a.as_object()) {
      const bool same = io::write_json(value) == io::write_json(*b.find(name));
      differ += same ? 0 : 1;
      CHECK_MESSAGE((same || std::find(one.derived.begin(), one.derived.end(), name) != one.derived.end()), name);
    }
    CHECK(differ > 0);
  }
}

TEST_CASE("a job of elastic processes is refused without an elastic strategy") {
  const auto checked = [](const std::string& line, bool elastic = true, int processes = 1, bool gpu = false) {
    auto o = parse(words("--dataset synthetic " + line));
    std::vector<std::string> built{"solo", "mpi", "gloo", "ps", "ps_async"};
    if (gpu) built.emplace_back("nccl");
    check(*o, {processes, built, gpu, 0, elastic});
    return *o;
  };
  if (!changes_members("gloo")) {
    CHECK(contains(message_of<UsageError>([&] { (void)checked(""); }), "lets processes join and leave"));
    return;
  }
  for (const char* line : {"", "--strategy gloo", "--kv-store dist_sync", "--kv-store dist_device_sync"})
    for (const int processes : {1, 3}) CHECK(checked(line, true, processes).strategy == "gloo");
  if (changes_members("ps")) {
    auto o = parse(words("--dataset synthetic --kv-store dist_sync"));
    check(*o, {2, {"solo", "mpi", "gloo", "ps", "ps_async"}, false, 1, true});
    CHECK(o->strategy == "ps");
    CHECK(checked("--strategy ps").strategy == "ps");
    o = parse(words("--dataset synthetic --kv-store dist_async"));
    check(*o, {2, {"solo", "mpi", "gloo", "ps", "ps_async"}, false, 1, true});
    CHECK(o->strategy == "ps_async");
    o = parse(words("--dataset synthetic --strategy ps_async --elastic-batch worker"));
    CHECK(contains(message_of<UsageError>([&] {
                     check(*o, {2, {"solo", "mpi", "gloo", "ps", "ps_async"}, false, 1, true});
                   }),
                   "the batch of a push is one worker's"));
  }
  if (changes_members("nccl")) {
    for (const char* line : {"", "--backend cuda", "--strategy nccl", "--kv-store nccl", "--kv-store dist_device_sync"})
      for (const int processes : {1, 3}) {
        const RunOptions o = checked(line, true, processes, true);
        CHECK(o.strategy == "nccl");
        CHECK(o.backend == "cuda");
      }
    // Gloo cannot sum gradients on a GPU, so `auto` does not select one, even for one process.
    CHECK(checked("--strategy gloo", true, 1, true).backend == "auto");
    CHECK(contains(message_of<UsageError>([&] { (void)checked("--strategy gloo --backend cuda", true, 1, true); }),
                   "[--strategy] expected nccl"));
    CHECK(contains(message_of<UsageError>([&] { (void)checked("--strategy nccl --backend eigen", true, 1, true); }),
                   "[--backend] expected cuda"));
  }
  for (const char* line : {"--strategy solo", "--kv-store local"})
    CHECK(contains(message_of<UsageError>([&] { (void)checked(line); }), "lets processes join and leave"));
  CHECK(contains(message_of<UsageError>([&] { (void)checked("--eval-only"); }), "[--eval-only]"));
  if (changes_members("mpi")) {
    auto o = parse(words("--dataset synthetic"));
    check(*o, {2, {"solo", "mpi", "gloo"}, false, 0, true, true});
    CHECK(o->strategy == "mpi");
    CHECK(contains(message_of<UsageError>([&] { (void)checked("--strategy mpi"); }), "another strategy than mpi"));
    o = parse(words("--dataset synthetic --strategy gloo"));
    CHECK(contains(message_of<UsageError>([&] {
                     check(*o, {2, {"mpi", "gloo"}, false, 0, true, true});
                   }),
                   "mpi, because mpirun started this process"));
  }
  CHECK(checked("--spot-notice notice").spot_notice == "notice");
  CHECK(contains(message_of<UsageError>([&] { (void)checked("--spot-notice notice", false); }),
                 "tutti-launch --elastic"));
}

TEST_CASE(
    "with shares of rows, a process may compute twice the batch at once, and the backend is one of the processor") {
  const auto checked = [&](const std::string& line, int processes, bool gpu = false) {
    auto o = parse(words("--shares rows --batch-size 16 " + line));
    check(*o, {processes, {"solo", "gloo", "nccl"}, gpu});
    return *o;
  };
  CHECK(trainer_options(checked("--strategy gloo", 4)).micro_batch == 32);
  CHECK(trainer_options(checked("--strategy gloo --accumulate 2", 4)).micro_batch == 16);
  const char* const device = "[--shares] expected equal with backend cuda";
  CHECK(contains(message_of<UsageError>([&] { (void)checked("--strategy nccl", 4); }), device));
  CHECK(contains(message_of<UsageError>([&] { (void)checked("", 1, true); }), device));
  CHECK_NOTHROW((void)checked("--gpus=", 1, true));
}

TEST_CASE("logical ranks count the batch, and refuse options that depend on the processes") {
  const std::vector<std::string> built{"solo", "mpi", "gloo", "ps", "ps_async"};
  const auto checked = [&](const std::string& line, int processes, int servers = 0, bool elastic = false) {
    auto o = parse(words(line));
    check(*o, {processes, built, false, servers, elastic});
    return *o;
  };
  for (const int processes : {1, 2, 4}) {
    const std::string strategy = processes == 1 ? "" : " --strategy gloo";
    const RunOptions o = checked("--logical-ranks 4 --batch-size 16 --accumulate 2" + strategy, processes);
    CHECK(o.global_batch_size == 128);
    CHECK(trainer_options(o).logical_ranks == 4);
    CHECK(trainer_options(o).micro_batch == 16);
    CHECK(o.deterministic);
    const LoaderOptions training = loader_options(o, true, processes - 1, processes),
                        test = loader_options(o, false, processes - 1, processes);
    CHECK(training.placement.logical_ranks == 4);
    CHECK(training.placement.global_batch == 128);
    // --evaluation-batch counts the images of a logical rank, like --batch-size.
    CHECK(test.placement.global_batch == 64);
    CHECK(test.placement.logical_ranks == 4);
    // The default rate follows the global batch.
    CHECK(*o.lr == checked("--global-batch-size 128", 1).lr);
  }
  CHECK(checked("--logical-ranks 4 --global-batch-size 30", 2).batch_size == 8);
  CHECK(checked("--logical-ranks 4 --allow-other-bits", 1).allow_other_bits);

  const auto refused = [&](const std::string& line, int processes, int servers = 0, bool elastic = false) {
    return message_of<UsageError>([&] { (void)checked(line, processes, servers, elastic); });
  };
  CHECK(contains(refused("--logical-ranks 2 --strategy gloo", 3),
                 "[--logical-ranks] expected at least the 3 processes that were started, got 2"));
  CHECK(contains(refused("--logical-ranks 5000", 1), "[--logical-ranks] expected 0 to 4096"));
  CHECK(
      contains(refused("--logical-ranks 4 --strategy ps_async", 2, 1), "[--strategy] expected solo, mpi, gloo, nccl"));
  CHECK(contains(refused("--logical-ranks 4 --strategy gloo --comm-wire bf16", 2), "[--comm-wire] expected same"));
  CHECK(contains(refused("--logical-ranks 4 --strategy ps --gc-type 2bit", 2, 1), "[--gc-type] expected none"));
  CHECK(contains(refused("--logical-ranks 4 --convolution tune", 1), "[--convolution] expected auto, direct or"));
  CHECK(contains(refused("--logical-ranks 4 --autotune", 1), "[--autotune] expected no --autotune"));
  CHECK(contains(refused("--logical-ranks 4 --strategy gloo --elastic-batch worker", 2, 0, true),
                 "[--elastic-batch] expected global"));
  CHECK(contains(refused("--allow-other-bits", 1), "[--allow-other-bits] expected --logical-ranks with it"));
}
