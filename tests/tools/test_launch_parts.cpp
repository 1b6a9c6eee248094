// SPDX-License-Identifier: MIT
// The parts of tutti-launch that need no second process, and what a started process reads.
#include <doctest/doctest.h>

#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/dist/launch_answer.hpp>
#include <tutti/dist/launch_environment.hpp>
#include <tutti/dist/progress_report.hpp>

#include "data/temp_folder.hpp"
#include "examples/common/environment.hpp"
#include "tools/launch/ask.hpp"
#include "tools/launch/blame.hpp"
#include "tools/launch/commands.hpp"
#include "tools/launch/meeting.hpp"
#include "tools/launch/mpi.hpp"
#include "tools/launch/options.hpp"
#include "tools/launch/plan.hpp"
#include "tools/launch/progress_board.hpp"
#include "tools/launch/quote.hpp"
#include "tools/launch/ssh.hpp"
#include "tools/launch/wire.hpp"

using namespace tutti;
using namespace tutti::launch;
using test::contains;
using test::message_of;

namespace {

LaunchEnvironment environment(const std::map<std::string, std::string>& variables) {
  return read_launch_environment([&](const char* name) -> const char* {
    const auto v = variables.find(name);
    return v == variables.end() ? nullptr : v->second.c_str();
  });
}

}  // namespace

TEST_CASE("the environment of a started process") {
  CHECK_FALSE(environment({}).launched);
  CHECK(environment({}).size == 1);
  const auto e = environment({{"TUTTI_RANK", "2"},
                              {"TUTTI_SIZE", "4"},
                              {"TUTTI_LOCAL_RANK", "0"},
                              {"TUTTI_LOCAL_SIZE", "2"},
                              {"TUTTI_HOST", "b"},
                              {"TUTTI_JOB", "0123456789abcdef"},
                              {"TUTTI_ROOT", "a:1"},
                              {"TUTTI_REPORT", "/x"},
                              {"TUTTI_ROLE", "worker"}});
  CHECK((e.launched && e.rank == 2 && e.size == 4 && e.local_rank == 0 && e.local_size == 2 && e.host == "b" &&
         e.job == "0123456789abcdef" && e.root == "a:1" && e.report == "/x" && e.role == "worker"));
  const auto mpi = environment({{"OMPI_COMM_WORLD_RANK", "1"},
                                {"OMPI_COMM_WORLD_SIZE", "3"},
                                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  CHECK((mpi.launched && mpi.rank == 1 && mpi.size == 3 && mpi.local_rank == 1 && mpi.local_size == 2 &&
         mpi.report.empty()));
  const auto server = environment({{"TUTTI_RANK", "0"},
                                   {"TUTTI_SIZE", "2"},
                                   {"TUTTI_ROLE", "server"},
                                   {"DMLC_NUM_WORKER", "4"},
                                   {"DMLC_NUM_SERVER", "2"}});
  CHECK((server.is_server() && server.workers == 4 && server.servers == 2));
}

TEST_CASE("an environment that makes no sense is refused") {
  using V = std::map<std::string, std::string>;
  for (const V& bad :
       {V{{"TUTTI_RANK", "4"}, {"TUTTI_SIZE", "4"}}, V{{"TUTTI_RANK", "x"}, {"TUTTI_SIZE", "4"}},
        V{{"TUTTI_RANK", ""}, {"TUTTI_SIZE", "4"}}, V{{"TUTTI_RANK", "-1"}, {"TUTTI_SIZE", "4"}},
        V{{"TUTTI_RANK", "0"}}, V{{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "0"}},
        V{{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "2"}, {"TUTTI_LOCAL_RANK", "1"}}, V{{"TUTTI_SIZE", "abc"}},
        V{{"TUTTI_SIZE", "2"}}, V{{"TUTTI_RANK", "9"}, {"TUTTI_SIZE", "2"}},
        V{{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "1"}, {"TUTTI_ROLE", "boss"}}, V{{"DMLC_ROLE", "boss"}},
        V{{"DMLC_ROLE", "worker"}, {"DMLC_NUM_WORKER", "two"}}, V{{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}},
        V{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "x"}},
        V{{"OMPI_COMM_WORLD_SIZE", "2"}}, V{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "two"}},
        V{{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}}) {
    CAPTURE(bad.begin()->second);
    CHECK_THROWS_AS((void)environment(bad), UsageError);
  }
  CHECK(message_of<UsageError>([&] {
          (void)environment(V{{"TUTTI_SIZE", "abc"}});
        }).starts_with("[environment TUTTI_SIZE] expected an integer from 1 to 16777216, got 'abc'."));
  const auto alone = message_of<UsageError>([&] { (void)environment(V{{"TUTTI_SIZE", "2"}}); });
  CHECK(contains(alone, "[environment TUTTI_RANK] expected a number beside TUTTI_SIZE 2, got none."));
  CHECK(contains(alone, "tutti-launch -n N"));
}

TEST_CASE("who started a process, and whether it may train") {
  using V = std::map<std::string, std::string>;
  // What is left in a shell has started nobody.
  for (const V& stray : {V{{"DMLC_NUM_WORKER", "4"}}, V{{"DMLC_NUM_WORKER", "abc"}},
                         V{{"DMLC_ROLE", "worker"}, {"DMLC_NUM_WORKER", "1"}}, V{{"DMLC_ROLE", ""}},
                         V{{"DMLC_PS_ROOT_URI", "a"}, {"DMLC_NUM_WORKER", "3"}}}) {
    const auto e = environment(stray);
    CHECK((!e.launched && e.size == 1 && e.workers == 1));
    CHECK_NOTHROW(require_worker(e));
  }
  const auto said = [](const V& v) { return message_of<UsageError>([&] { require_worker(environment(v)); }); };
  for (const char* role : {"server", "scheduler"}) {
    CHECK(contains(said(V{{"DMLC_ROLE", role}}), "[environment DMLC_ROLE] expected worker"));
    CHECK(contains(said(V{{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "1"}, {"TUTTI_ROLE", role}, {"DMLC_ROLE", "worker"}}),
                   std::string("[environment TUTTI_ROLE] expected worker, because this version of tutti has no "
                               "parameter server, got '") +
                       role + "'."));
  }
  // A launcher that numbers nobody.
  CHECK(contains(said(V{{"DMLC_ROLE", "worker"}, {"DMLC_NUM_WORKER", "2"}}), "tutti-launch -n 2 starts as many"));
  CHECK(contains(said(V{{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "0"}}), "mpirun -np 2"));
  CHECK_NOTHROW(require_worker(environment(V{{"SLURM_STEP_NUM_TASKS", "1"}})));
  CHECK_NOTHROW(require_worker(
      environment(V{{"SLURM_STEP_NUM_TASKS", "2"}, {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}})));
  const V through_mpi{{"TUTTI_RANK", "1"},
                      {"TUTTI_SIZE", "2"},
                      {"OMPI_COMM_WORLD_RANK", "1"},
                      {"OMPI_COMM_WORLD_SIZE", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                      {"TUTTI_LOCAL_RANK", "1"},
                      {"TUTTI_LOCAL_SIZE", "2"}};
  // tutti-launch's word holds before mpirun's.
  const auto both = environment(through_mpi);
  CHECK((both.mpi && both.rank == 1 && both.local_rank == 1 && both.local_size == 2));
  const auto hydra =
      environment(V{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  CHECK((hydra.mpi && hydra.launched && hydra.rank == 1 && hydra.size == 2 && hydra.local_rank == 1));
  CHECK_NOTHROW(require_launched_size(both, "mpi", 2));
  CHECK(contains(message_of<UsageError>([&] { require_launched_size(both, "mpi", 1); }),
                 "[--strategy mpi] expected 2 ranks, as many as processes were started, got 1 rank."));
  const auto by_hand = environment(V{{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "3"}});
  CHECK(contains(message_of<UsageError>([&] { require_launched_size(by_hand, "mpi", 1); }),
                 "'tutti-launch -n 3 --launcher mpi' and 'mpirun -np 3'"));
  CHECK(
      contains(message_of<UsageError>([&] { require_launched_size(environment({}), "mpi", 2); }), "one rank, because"));
}

TEST_CASE("the answer to the launcher's question") {
  CHECK_FALSE(launcher_asks());
  ::setenv("TUTTI_ASK", "launch", 1);
  CHECK(launcher_asks());
  ::unsetenv("TUTTI_ASK");
  const auto a = parse_launch_answer("TUTTI-ANSWER 1 strategy=mpi mpi=1 servers=0");
  REQUIRE(a.has_value());
  CHECK((a->strategy == "mpi" && a->over_mpi && !a->servers));
  for (const char* none : {"", "TUTTI-ANSWER", "TUTTI-ANSWER 2 strategy=mpi mpi=1 servers=0",
                           "TUTTI-ANSWER 1 strategy= mpi=1 servers=0", "TUTTI-ANSWER 1 strategy=m\x1bi mpi=1 servers=0",
                           "TUTTI-ANSWER 1 strategy=mpi", "TUTTI-ANSWER 1 strategy=mpi mpi=",
                           "TUTTI-ANSWER 1 strategy=mpi mpi=1", "TUTTI-ANSWER 1 strategy=mpi mpi=1 servers="})
    CHECK_FALSE(parse_launch_answer(none).has_value());

  const auto launcher = [](std::vector<std::string> words, const std::optional<LaunchAnswer>& answer, std::size_t n) {
    words.emplace_back("prog");
    return launcher_for(parse_options(words), answer, n);
  };
  const LaunchAnswer mpi{"mpi", true, false}, nccl{"nccl", false, false}, server{"ps", false, true};
  CHECK(launcher({"-n", "2"}, {}, 2) == "local");
  CHECK(launcher({"-H", "f"}, {}, 2) == "ssh");
  CHECK(launcher({"-n", "2"}, nccl, 2) == "local");
  CHECK(launcher({"-H", "f"}, nccl, 2) == "ssh");
  CHECK(launcher({"-n", "2"}, mpi, 2) == "mpi");
  CHECK(launcher({"-H", "f"}, mpi, 2) == "mpi");
  CHECK(launcher({"-n", "1"}, mpi, 1) == "local");
  CHECK(launcher({"-n", "2", "-s", "2"}, server, 2) == "local");
  CHECK(launcher({"-n", "2", "-s", "2"}, {}, 2) == "local");
  CHECK(launcher({"-n", "2", "--mpi-arg", "x"}, mpi, 2) == "mpi");
  const auto refused = [&](const std::vector<std::string>& words, const std::optional<LaunchAnswer>& answer) {
    return message_of<UsageError>([&] { (void)launcher(words, answer, 2); });
  };
  CHECK(contains(
      refused({"-n", "2", "--launcher", "local"}, mpi),
      "[--launcher] expected mpi, because prog trains with strategy mpi, got local. hint: leave --launcher out"));
  CHECK(contains(refused({"-H", "f", "--launcher", "ssh"}, mpi), "[--launcher] expected mpi"));
  CHECK(contains(refused({"-n", "2", "-s", "1"}, mpi),
                 "[--num-servers] expected none, because prog trains with strategy mpi, got 1."));
  CHECK(contains(refused({"-n", "2", "--mpi-arg", "x"}, nccl), "[--mpi-arg]"));
}

TEST_CASE("no variable of the launcher is taken for an option of the training programs") {
  for (const std::string_view name : launcher_variables) {
    CAPTURE(name);
    CHECK((!name.starts_with("TUTTI_") ||
           std::find(std::begin(examples::own_variables), std::end(examples::own_variables), name) !=
               std::end(examples::own_variables)));
  }
}

TEST_CASE("who runs where") {
  const test::TempFolder folder;
  const auto ranks_of = [&](const std::string& hosts, std::vector<std::string> words) {
    test::write_text(folder / "hosts", hosts);
    words.insert(words.begin(), {"-H", (folder / "hosts").string()});
    const Plan plan = make_plan(parse_options(words));
    std::string text;
    for (const std::size_t site : plan.site_of_mpi_rank) text += plan.sites[site].host.name + " ";
    return text;
  };
  // This host, wherever its line stands and whatever it is called there, has rank 0; else the first line.
  CHECK(ranks_of("203.0.113.1 slots=2\n203.0.113.2\nlocalhost slots=2\n", {"c"}) ==
        "localhost localhost 203.0.113.1 203.0.113.1 203.0.113.2 ");
  CHECK(ranks_of("203.0.113.1\n127.0.0.1\n", {"-n", "1", "c"}) == "127.0.0.1 ");
  CHECK(ranks_of("203.0.113.1\n" + own_node() + "\n", {"c"}) == own_node() + " 203.0.113.1 ");
  CHECK(ranks_of("203.0.113.1\n203.0.113.2\n203.0.113.1\n", {"c"}) == "203.0.113.1 203.0.113.2 ");
  // Two names of this host are one.
  CHECK(ranks_of("localhost slots=2\n203.0.113.1\n127.0.0.1\n", {"c"}) == "localhost localhost 203.0.113.1 localhost ");
  // The port is that of a host behind this one's address.
  CHECK(ranks_of("203.0.113.1\nlocalhost:2222\n", {"c"}) == "203.0.113.1 localhost ");
  CHECK(ranks_of("203.0.113.1\nsomebody-else@localhost\n", {"c"}) == "203.0.113.1 localhost ");
  for (const std::string& address : own_addresses()) {
    if (address.find(':') != std::string::npos) continue;
    CHECK(ranks_of("203.0.113.1\n" + address + "\n", {"c"}) == address + " 203.0.113.1 ");
  }

  // With --gpus in the command -n counts hosts, each with a process a GPU.
  const std::string two = "203.0.113.1 slots=5\n203.0.113.2\n";
  CHECK(ranks_of(two, {"c", "--gpus", "0,1"}) == "203.0.113.1 203.0.113.1 203.0.113.2 203.0.113.2 ");
  CHECK(ranks_of(two, {"-n", "1", "c", "x", "--gpus=0,1,7"}) == "203.0.113.1 203.0.113.1 203.0.113.1 ");
  CHECK(ranks_of(two, {"-n", "2", "c", "--gpus", "3"}) == "203.0.113.1 203.0.113.2 ");
  CHECK(ranks_of(two, {"-n", "3", "c", "--gpus", "3"}) == "203.0.113.1 203.0.113.2 203.0.113.1 ");
  CHECK(ranks_of(two, {"-n", "2", "c", "--gpus", "0,1", "--gpus", ""}) == "203.0.113.1 203.0.113.1 ");
  for (const auto& none : std::vector<std::vector<std::string>>{{"--gpus", ""},
                                                                {"--gpus="},
                                                                {"--gpus", "--network", "resnet"},
                                                                {"--gpus"},
                                                                {"--gpus", "0,0"},
                                                                {"--gpus", "all"}}) {
    std::vector<std::string> words{"-n", "2", "c"};
    words.insert(words.end(), none.begin(), none.end());
    CHECK(ranks_of(two, words) == "203.0.113.1 203.0.113.1 ");
  }
  CHECK(
      contains(message_of<UsageError>([&] {
                 (void)ranks_of(two, {"-n", "3", "c", "--gpus", "0,1"});
               }),
               "[--num-workers] expected at most 2 hosts, because with --gpus in the command -n counts them, got 3."));
  CHECK(make_plan(parse_options({"c", "--gpus", "0,1,2"})).site_of_mpi_rank.size() == 3);
}

TEST_CASE("what a process reports can be read after it") {
  const test::TempFolder folder;
  const std::string path = (folder / "slot").string();
  const char* job = "00000000000000ff";
  const ProgressFile file = ProgressFile::create(path, job);
  CHECK(file.read() == RankProgress{});
  {
    ProgressReporter reporter(path.c_str(), job);
    REQUIRE(reporter.active());
    reporter.begin(57, 2);
    CHECK(file.read() == RankProgress{57, 2, ProgressPhase::begin, 0});
    reporter.heartbeat();
    reporter.end((std::uint64_t{1} << 40) - 1, ProgressSlot::max_bucket);
    CHECK(file.read() == RankProgress{(std::uint64_t{1} << 40) - 1, ProgressSlot::max_bucket, ProgressPhase::end, 1});
    reporter.begin(3, -1);
  }
  CHECK(file.read() == RankProgress{3, -1, ProgressPhase::idle, 1});
  CHECK(ProgressFile::open(path, job)->read() == RankProgress{3, -1, ProgressPhase::idle, 1});
  CHECK_THROWS_AS((void)ProgressFile::create(path, job), DataError);
}

TEST_CASE("a report to nobody, to another job or to another file does nothing") {
  const test::TempFolder folder;
  const std::string path = (folder / "slot").string();
  const ProgressFile file = ProgressFile::create(path, "1");
  test::write_text(folder / "other", std::string(64, 'x'));
  test::write_text(folder / "short", "x");
  for (const auto& [name, job] : {std::pair<const char*, const char*>{nullptr, "1"},
                                  {"", "1"},
                                  {path.c_str(), nullptr},
                                  {path.c_str(), "2"},
                                  {"/dev/null", "1"},
                                  {"/nowhere/slot", "1"}}) {
    ProgressReporter reporter(name, job);
    CHECK_FALSE(reporter.active());
    reporter.begin(1, 1);
    reporter.heartbeat();
    reporter.idle();
  }
  for (const char* name : {"other", "short"}) CHECK_FALSE(ProgressReporter((folder / name).c_str(), "1").active());
  CHECK(file.read() == RankProgress{});
  CHECK_FALSE(ProgressFile::open(path, "2").has_value());
  CHECK_FALSE(ProgressFile::open(folder / "other", "1").has_value());
  // A process may write anything into its file.
  const auto fd = io::Descriptor::open(path, O_WRONLY, "open");
  REQUIRE(::pwrite(fd.get(), "\xff\xff\xff\xff\xff\xff\xff\xff", 8, 16) == 8);
  CHECK_FALSE(file.read().has_value());
  REQUIRE(::pwrite(fd.get(), "garbage!", 8, 0) == 8);
  CHECK_FALSE(file.read().has_value());
}

TEST_CASE("a quoted word reaches the shell's command as it is") {
  for (const std::string word :
       {"plain",       "",        " ", "a b", "'", "''", "'; touch x; '", "$(touch x)", "`touch x`", "\\", "\\'",
        "\"",          "*",       "~", "!!",  "#", "-n", "a=b",           "${HOME}",    "|",         "&",  "<>",
        "h\xc3\xb6st", "\xff\xfe"}) {
    CAPTURE(word);
    const std::string command = "exec printf '<%s>' " + shell_quoted(word);
    FILE* shell = ::popen(command.c_str(), "r");
    REQUIRE(shell != nullptr);
    std::array<char, 256> out{};
    const std::size_t n = std::fread(out.data(), 1, out.size(), shell);
    CHECK(::pclose(shell) == 0);
    CHECK(std::string(out.data(), n) == "<" + word + ">");
  }
  for (const std::string& bad :
       {std::string("a\nb"), std::string("a\rb"), std::string("a\0b", 3), std::string("\x1b[0m")})
    CHECK_THROWS_AS((void)shell_quoted(bad), UsageError);
}

TEST_CASE("ssh sees only host names, after --") {
  auto argv = ssh_arguments({}, {"b.example", 2222});
  REQUIRE(argv.size() > 4);
  for (const char* option :
       {"BatchMode=yes", "StrictHostKeyChecking=accept-new", "ForwardAgent=no", "ClearAllForwardings=yes"})
    CHECK(std::find(argv.begin(), argv.end(), option) != argv.end());
  CHECK(argv[argv.size() - 1] == "b.example");
  CHECK(argv[argv.size() - 2] == "--");
  CHECK(argv[argv.size() - 3] == "2222");
  for (const char* bad : {"-oProxyCommand=touch x", "", "a b", "a;b", "a@b", "--"}) {
    CHECK_THROWS_AS((void)ssh_arguments({}, {bad}), UsageError);
    if (*bad != '\0') CHECK_THROWS_AS((void)ssh_arguments({}, {"b", 0, 1, 0, bad}), UsageError);
  }
  argv = ssh_arguments({}, {"b", 0, 1, 0, "ec2-user"});
  CHECK((argv[argv.size() - 4] == "-l" && argv[argv.size() - 3] == "ec2-user" && argv.back() == "b"));
  ::setenv("TUTTI_TEST_SECRET", "s3cret", 1);
  bool path = false;
  for (const auto& entry : ssh_environment()) {
    CHECK_FALSE(contains(entry, "s3cret"));
    path = path || entry.starts_with("PATH=");
  }
  CHECK(path);
  ::unsetenv("TUTTI_TEST_SECRET");
}

TEST_CASE("a port that is held is given to nobody else, and rank 0 can listen there") {
  const Meeting m = choose_meeting(0, true);
  CHECK((m.port > 0 && m.ps_port > 0 && m.port != m.ps_port && m.ports == 1));
  // As many as the system gives are others; both kinds are asked for.
  std::vector<tcp::Socket> others;
  for (int i = 0; i < 500; ++i) {
    const tcp::Address any = tcp::any_address(i % 2 == 0 ? AF_INET : AF_INET6, 0);
    tcp::Socket s(::socket(any.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::bind(s.get(), any.get(), any.size) != 0) continue;
    CHECK((tcp::port_of(s) != m.port && tcp::port_of(s) != m.ps_port));
    others.push_back(std::move(s));
  }
  CHECK_FALSE(others.empty());
  int error = 0;
  std::string why;
  for (const char* host : {"127.0.0.1", "::1"}) {
    const auto at = tcp::SystemLookup{}(host, m.port, true, why);
    const auto listener = tcp::listen_on(at.at(0), 8, error);
    CHECK_MESSAGE((listener || error == EADDRNOTAVAIL), tcp::error_text(error));
    if (listener)
      CHECK_THROWS_WITH_AS((void)choose_meeting(m.port, true), doctest::Contains("--root-port"), UsageError);
  }
  const Meeting far = choose_meeting(4711, false);
  CHECK((far.port == 4711 && far.ports == 1 && far.ps_port == 4712));
  CHECK(choose_meeting(0, false).ports > 1);
  CHECK(new_secret().size() == 64);
  CHECK(new_secret() != new_secret());
}

TEST_CASE("an order arrives as it was sent") {
  Order o;
  o.job = "0123456789abcdef";
  o.host = "b";
  o.folder = "/a b";
  o.root_port = 7;
  o.root_ports = 3;
  o.ps_port = 11;
  o.secret = "s3cret";
  o.through_mpi = true;
  o.command = {"sh", "-c", std::string("echo '\n\0,:5:'", 13), ""};
  o.everywhere = {{"A", "1\n2"}, {"B", ""}};
  o.on_servers = {{"C", "\xff"}};
  o.processes = {{"worker", 3, 1, 2, 3}, {"server", 0, 0, 1, 4}};
  const std::string frame = encode(o);
  const std::size_t start = frame.find('\n') + 1;
  CHECK(frame_length(std::string_view(frame).substr(0, start - 1)) == frame.size() - start);
  const std::string payload = frame.substr(start);
  const Order back = decode(payload);
  CHECK(encode(back) == frame);
  CHECK((back.command == o.command && back.everywhere == o.everywhere && back.on_servers == o.on_servers &&
         back.through_mpi && back.processes.size() == 2 && back.processes[1].role == "server"));
  for (std::size_t n = 0; n < payload.size(); ++n)
    CHECK_THROWS_AS((void)decode(std::string_view(payload).substr(0, n)), CommunicationError);
  for (std::size_t i = 0; i < payload.size(); ++i) {
    std::string bad = payload;
    bad[i] = static_cast<char>(bad[i] ^ 0x15);
    try {
      (void)decode(bad);
    } catch (const CommunicationError&) {
    }
  }
  for (const char* line : {"", "TUTTI-LAUNCH", "TUTTI-LAUNCH x", "TUTTI-LAUNCH 99999999999999999999", "GET / HTTP/1.1",
                           "TUTTI-LAUNCH -1", "TUTTI-LAUNCH 1 "})
    CHECK_THROWS_AS((void)frame_length(line), CommunicationError);
}

TEST_CASE("a stream is split into lines") {
  LineSplitter s;
  std::vector<std::string> lines;
  const auto keep = [&](std::string_view l) { lines.emplace_back(l); };
  s.feed("a\n\nb", keep);
  s.feed("c\r\n", keep);
  s.feed(std::string(LineSplitter::longest + 3, 'x') + "\nend", keep);
  s.finish(keep);
  REQUIRE(lines.size() == 6);
  CHECK((lines[0] == "a" && lines[1].empty() && lines[2] == "bc\r" && lines[4] == "xxx" && lines[5] == "end"));
  CHECK(lines[3].size() == LineSplitter::longest);
}

TEST_CASE("options, with - and _") {
  ::setenv("TUTTI_TEST_VALUE", "from here", 1);
  const Options o = parse_options({"-n4",
                                   "-s",
                                   "0",
                                   "--hostfile=f",
                                   "--launcher",
                                   "mpi",
                                   "--env",
                                   "A=b=c",
                                   "--env",
                                   "TUTTI_TEST_VALUE",
                                   "--env_worker",
                                   "W:1",
                                   "--log_dir",
                                   "l",
                                   "--stall_warning",
                                   "0.5",
                                   "--mpi-arg",
                                   "--mca",
                                   "--sync-dst-dir",
                                   "/x",
                                   "cmd",
                                   "-n",
                                   "9",
                                   "--env"});
  CHECK((o.workers == 4 && o.servers == 0 && o.hosts_file == "f" && o.launcher == "mpi" && o.log_dir == "l"));
  CHECK(o.everywhere == Variables{{"A", "b=c"}, {"TUTTI_TEST_VALUE", "from here"}});
  CHECK(o.on_workers == Variables{{"W", "1"}});
  CHECK(parse_options({"-n", "1", "-s2", "--env-server=S=2", "c"}).on_servers == Variables{{"S", "2"}});
  CHECK((o.stall_warning == 0.5 && o.mpi_arguments == std::vector<std::string>{"--mca"} && o.sync_dir == "/x"));
  CHECK(o.command == std::vector<std::string>{"cmd", "-n", "9", "--env"});
  CHECK(parse_options({"-n", "1", "--", "-x"}).command == std::vector<std::string>{"-x"});
  CHECK(parse_options({"-H", "f", "c"}).launcher.empty());
  CHECK(parse_options({"--kill", "--job", "0123456789abcdef"}).kill);
  CHECK(parse_options({"--help", "--nonsense"}).help);
}

TEST_CASE("a wrong option is refused by name") {
  using Words = std::vector<std::string>;
  for (const auto& refused : std::vector<std::pair<Words, std::string>>{
           {{}, "a command"},
           {{"-n", "0", "c"}, "--num-workers"},
           {{"-n", "x", "c"}, "--num-workers"},
           {{"-n"}, "--num-workers"},
           {{"c"}, "-n N"},
           {{"-n", "1"}, "a command"},
           {{"-n", "1", "--"}, "a command"},
           {{"-n", "1", ""}, "a command"},
           {{"-q", "c"}, "'-q'"},
           {{"--num-worker", "1", "c"}, "'--num-worker'"},
           {{"-n", "1", "--launcher", "yarn", "c"}, "--launcher"},
           {{"-n", "1", "--launcher", "ssh", "c"}, "-H FILE"},
           {{"-n", "1", "--launcher", "local", "-H", "f", "c"}, "--launcher local"},
           {{"-n", "1", "--env", "1A=b", "c"}, "--env"},
           {{"-n", "1", "--env", "NOT_SET_ANYWHERE", "c"}, "NOT_SET_ANYWHERE"},
           {{"-n", "1", "--env", "TUTTI_RANK=3", "c"}, "TUTTI_RANK"},
           {{"-n", "1", "--env-worker", "A", "c"}, "--env-worker"},
           {{"-n", "1", "--env-server", "A=1", "c"}, "--env-server"},
           {{"-n", "1", "--stall-warning", "-1", "c"}, "--stall-warning"},
           {{"-n", "1", "--stall-deadline", "nan", "c"}, "--stall-deadline"},
           {{"-n", "1", "--host-timeout", "0", "c"}, "--host-timeout"},
           {{"-n", "1", "--launcher", "local", "--mpi-arg", "x", "c"}, "--mpi-arg"},
           {{"-n", "1", "--launcher", "mpi", "-s", "1", "c"}, "--num-servers"},
           {{"c", "--gpus", ""}, "-n N"},
           {{"-n", "1", "--sync-dst-dir", "x", "c"}, "--sync-dst-dir"},
           {{"-n", "1", "--job", "0123456789abcdef", "c"}, "--job"},
           {{"--kill", "--job", "../x"}, "--job"},
           {{"--kill", "c"}, "--kill"},
           {{"--kill=1"}, "--kill"}}) {
    const Words& words = refused.first;
    const std::string& part = refused.second;
    CAPTURE(part);
    CHECK(contains(message_of<UsageError>([&] { (void)parse_options(words); }), part));
  }
}

TEST_CASE("the process that holds the others up") {
  using std::chrono::seconds;
  const auto t = Clock::time_point{} + seconds(1000);
  const auto at = [](std::uint64_t step, int bucket, ProgressPhase phase) {
    return RankProgress{step, bucket, phase, 0};
  };
  ProgressBoard board;
  board.update("worker 0", "a", at(57, 2, ProgressPhase::begin), false, t);
  board.update("worker 1", "b", at(57, 1, ProgressPhase::begin), false, t + seconds(1));
  board.update("worker 2", "b", at(57, 2, ProgressPhase::begin), false, t);
  board.update("worker 3", "b", at(9, 0, ProgressPhase::idle), false, t);
  board.update("worker 4", "b", RankProgress{}, false, t);
  CHECK_FALSE(board.stalled(5, t + seconds(4)).has_value());
  // Behind the others, although it was heard of later.
  auto stall = board.stalled(5, t + seconds(7));
  REQUIRE(stall.has_value());
  CHECK(stall->entry->name == "worker 1");
  const std::string text = board.describe(*stall);
  CHECK(contains(text, "worker 1 on b has stood still for 6 s at step 57, bucket 1 (begun)"));
  CHECK(contains(text, "worker 0 is at step 57, bucket 2 (begun)"));
  // Also where its silence is a little younger than that of those who wait for it.
  stall = board.stalled(6.5, t + seconds(7));
  REQUIRE(stall.has_value());
  CHECK(stall->entry->name == "worker 1");
  // A stopped one is to blame wherever it is.
  board.update("worker 2", "b", at(57, 2, ProgressPhase::begin), true, t + seconds(6));
  stall = board.new_stall(5, t + seconds(7));
  REQUIRE(stall.has_value());
  CHECK(stall->entry->name == "worker 2");
  CHECK(contains(board.describe(*stall), "SIGSTOP"));
  CHECK_FALSE(board.new_stall(5, t + seconds(8)).has_value());
  CHECK(board.stalled(5, t + seconds(8)).has_value());
  // Progress ends it, and a heartbeat is progress.
  for (const char* name : {"worker 0", "worker 1", "worker 2"})
    board.update(name, "b", RankProgress{57, 2, ProgressPhase::begin, 1}, false, t + seconds(9));
  CHECK_FALSE(board.stalled(5, t + seconds(10)).has_value());
  CHECK(board.new_stall(5, t + seconds(20)).has_value());
  board.ended("worker 0");
  board.ended("worker 1");
  board.ended("worker 2");
  CHECK_FALSE(board.stalled(5, t + seconds(99)).has_value());
}

TEST_CASE("a process that does not come back from between two steps") {
  using std::chrono::seconds;
  const auto t = Clock::time_point{} + seconds(1000);
  const auto at = [](std::uint64_t step, ProgressPhase phase) { return RankProgress{step, 1, phase, 0}; };
  ProgressBoard board;
  board.update("worker 0", "a", at(12, ProgressPhase::begin), false, t);
  board.update("worker 1", "b", at(11, ProgressPhase::idle), false, t);
  board.update("worker 2", "b", at(9, ProgressPhase::idle), false, t);
  auto stall = board.stalled(5, t + seconds(6));
  REQUIRE(stall.has_value());
  CHECK(stall->entry->name == "worker 1");
  // Nobody waits: nobody is to blame, but for one that is stopped.
  board.update("worker 0", "a", at(12, ProgressPhase::idle), false, t + seconds(7));
  CHECK_FALSE(board.stalled(5, t + seconds(99)).has_value());
  board.update("worker 2", "b", at(9, ProgressPhase::idle), true, t + seconds(7));
  stall = board.new_stall(5, t + seconds(8));
  REQUIRE(stall.has_value());
  CHECK(stall->entry->name == "worker 2");
  CHECK_FALSE(board.new_stall(5, t + seconds(9)).has_value());
}

TEST_CASE("whose fault it was") {
  const auto ending = [](const char* name, bool by_signal, int code, const char* why) {
    return Ending{name, "h", {by_signal, code, why}};
  };
  using Endings = std::vector<Ending>;
  const auto blamed = [](const Endings& e) {
    const Ending* c = culprit(e);
    return c == nullptr ? std::string("nobody") : c->name;
  };
  CHECK(blamed({ending("0", false, 0, "own"), ending("1", true, 15, "stopped")}) == "nobody");
  CHECK(blamed({ending("0", false, 3, "own"), ending("1", false, 4, "own")}) == "0");
  // Others notice the loss before the one that was lost is heard of.
  CHECK(blamed({ending("0", false, 5, "own"), ending("1", true, 9, "own"), ending("2", false, 5, "own")}) == "1");
  CHECK(blamed({ending("0", false, 5, "own"), ending("2", false, 5, "own")}) == "0");
  CHECK(blamed({ending("0", true, 15, "orphaned"), ending("1", false, 5, "own")}) == "1");
  CHECK(blamed({ending("0", true, 15, "orphaned"), ending("1", true, 9, "vanished")}) == "1");
  CHECK(blamed({ending("0", true, 15, "stopped"), ending("1", true, 15, "orphaned")}) == "1");
  CHECK(exit_code_for({false, 17, "own"}) == 17);
  CHECK(exit_code_for({true, SIGKILL, "own"}) == 5);
  CHECK(exit_code_for({true, SIGTERM, "own"}) == 5);
  CHECK(exit_code_for({true, SIGSEGV, "own"}) == 1);
  CHECK(exit_code_for({true, SIGABRT, "own"}) == 1);
}

TEST_CASE("what mpirun says of a rank") {
  CHECK(rank_that_mpirun_blames("MPI_ABORT was invoked on rank 12 in communicator MPI_COMM_WORLD") == 12);
  CHECK(rank_that_mpirun_blames("mpirun noticed that process rank 3 with PID 0 on node b exited on signal 9") == 3);
  CHECK_FALSE(rank_that_mpirun_blames("all is well on rank 3").has_value());
  CHECK_FALSE(rank_that_mpirun_blames("MPI_ABORT was invoked on rank x").has_value());
}

TEST_CASE("why a host could not be used") {
  const Host b{"b", 0, 1, 1};
  auto p = connection_problem(b, false, 255, "Warning: x\nroot@b: Permission denied (publickey).\r\n", "/p");
  CHECK(p.code == 5);
  CHECK(contains(p.message, "[host b]"));
  CHECK(contains(p.message, "Permission denied (publickey)"));
  p = connection_problem(b, false, 127, "sh: 1: exec: /p: not found\n", "/p");
  CHECK(p.code == 2);
  CHECK(contains(p.message, "/p"));
  CHECK(contains(p.message, "--remote-launch"));
  p = connection_problem(b, false, 255, "\x1b]0;evil\x07\n", "/p");
  for (const char c : p.message) CHECK(static_cast<unsigned char>(c) >= 0x20);
}
