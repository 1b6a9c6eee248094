// SPDX-License-Identifier: MIT
// Tests parts of tutti-launch that need no second process.
#include <doctest/doctest.h>

#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/cluster/launch/key_file.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/cluster/launch/launch_info.hpp>
#include <tutti/core/error.hpp>

#include "data/temp_folder.hpp"
#include "tools/launch/cli/options.hpp"
#include "tools/launch/host/quote.hpp"
#include "tools/launch/host/rendezvous_ports.hpp"
#include "tools/launch/host/ssh.hpp"
#include "tools/launch/host/wire.hpp"
#include "tools/launch/job/blame.hpp"
#include "tools/launch/job/commands.hpp"
#include "tools/launch/job/mpi.hpp"
#include "tools/launch/job/plan.hpp"
#include "tools/launch/mpi/mpi_verdict.hpp"
#include "tools/launch/program_query.hpp"
#include "tools/trainer/environment.hpp"

using namespace tutti;
using namespace tutti::launch;
using test::contains;
using test::message_of;

TEST_CASE("the answer to the launcher's question is parsed") {
  CHECK_FALSE(is_launcher_query());
  ::setenv("TUTTI_ASK", "launch", 1);
  CHECK(is_launcher_query());
  ::unsetenv("TUTTI_ASK");
  const auto a = parse_launch_info("TUTTI-ANSWER 1 strategy=mpi mpi=1 servers=0");
  REQUIRE(a.has_value());
  CHECK((a->strategy == "mpi" && a->over_mpi && !a->servers));
  for (const char* none : {"", "TUTTI-ANSWER", "TUTTI-ANSWER 2 strategy=mpi mpi=1 servers=0",
                           "TUTTI-ANSWER 1 strategy= mpi=1 servers=0", "TUTTI-ANSWER 1 strategy=m\x1bi mpi=1 servers=0",
                           "TUTTI-ANSWER 1 strategy=mpi", "TUTTI-ANSWER 1 strategy=mpi mpi=",
                           "TUTTI-ANSWER 1 strategy=mpi mpi=1", "TUTTI-ANSWER 1 strategy=mpi mpi=1 servers="})
    CHECK_FALSE(parse_launch_info(none).has_value());

  CHECK_FALSE(a->servers_restart);
  const auto again = parse_launch_info("TUTTI-ANSWER 1 strategy=ps_async mpi=0 servers=1 restart=1");
  REQUIRE(again.has_value());
  CHECK((again->servers && again->servers_restart && !again->elastic));
  CHECK(parse_launch_info("TUTTI-ANSWER 1 strategy=gloo mpi=0 servers=0 elastic=1")->elastic);
  const auto both = parse_launch_info("TUTTI-ANSWER 1 strategy=ps mpi=0 servers=1 restart=1 elastic=1");
  CHECK((both->servers_restart && both->elastic));

  const auto launcher = [](std::vector<std::string> words, const std::optional<LaunchInfo>& answer, std::size_t n) {
    words.emplace_back("prog");
    return launcher_for(parse_options(words), answer, n);
  };
  const LaunchInfo mpi{"mpi", true, false}, nccl{"nccl", false, false}, server{"ps", false, true};
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
  const auto refused = [&](const std::vector<std::string>& words, const std::optional<LaunchInfo>& answer) {
    return message_of<UsageError>([&] { (void)launcher(words, answer, 2); });
  };
  CHECK(contains(
      refused({"-n", "2", "--launcher", "local"}, mpi),
      "[--launcher] expected mpi, because prog trains with strategy mpi, got local. hint: leave --launcher out"));
  CHECK(contains(refused({"-H", "f", "--launcher", "ssh"}, mpi), "[--launcher] expected mpi"));
  const auto servers = [](std::vector<std::string> words, const std::optional<LaunchInfo>& answer) {
    words.emplace_back("prog");
    return servers_for(parse_options(words), answer, 2);
  };
  const auto servers_refused = [&](const std::vector<std::string>& words, const std::optional<LaunchInfo>& answer) {
    return message_of<UsageError>([&] { (void)servers(words, answer); });
  };
  CHECK(servers({"-n", "2"}, {}) == 0);
  CHECK(servers({"-n", "2"}, mpi) == 0);
  CHECK(servers({"-n", "2"}, server) == 2);
  CHECK(servers({"-n", "2", "-s", "3"}, server) == 3);
  CHECK(servers({"-n", "2", "-s", "3"}, {}) == 3);
  CHECK(contains(servers_refused({"-n", "2", "-s", "1"}, mpi),
                 "[--num-servers] expected none, because prog trains with strategy mpi, got 1."));
  CHECK(contains(servers_refused({"-n", "2", "-s", "0"}, server), "[--num-servers] expected 1 or more, because prog"));
  CHECK(contains(servers_refused({"-n", "2", "--launcher", "mpi"}, server), "[--launcher] expected local or ssh"));
  CHECK(contains(servers_refused({"-n", "2", "--server-restarts", "1"}, server), "[--server-restarts] expected 0"));
  CHECK(contains(servers_refused({"-n", "2", "--server-restarts", "1"}, {}), "[--server-restarts] expected servers"));
  CHECK(contains(servers_refused({"-n", "2", "--env-server", "A=1"}, {}), "[--env-server] expected servers"));
  CHECK(contains(refused({"-n", "2", "--mpi-arg", "x"}, nccl), "[--mpi-arg]"));
}

TEST_CASE("no variable of the launcher is an option of the training programs") {
  for (const std::string_view name : launcher_variables) {
    CAPTURE(name);
    CHECK((!name.starts_with("TUTTI_") ||
           std::find(std::begin(trainer::own_variables), std::end(trainer::own_variables), name) !=
               std::end(trainer::own_variables)));
  }
}

TEST_CASE("ranks are assigned to hosts") {
  const test::TempFolder folder;
  const auto ranks_of = [&](const std::string& hosts, std::vector<std::string> words) {
    test::write_text(folder / "hosts", hosts);
    words.insert(words.begin(), {"-H", (folder / "hosts").string()});
    const Plan plan = make_plan(parse_options(words));
    std::string text;
    for (const std::size_t site : plan.site_of_mpi_rank) text += plan.sites[site].host.name + " ";
    return text;
  };
  // This host has rank 0, whatever its line and its name in the list. If the list does not have it, the first line has
  // rank 0.
  CHECK(ranks_of("203.0.113.1 slots=2\n203.0.113.2\nlocalhost slots=2\n", {"c"}) ==
        "localhost localhost 203.0.113.1 203.0.113.1 203.0.113.2 ");
  CHECK(ranks_of("203.0.113.1\n127.0.0.1\n", {"-n", "1", "c"}) == "127.0.0.1 ");
  CHECK(ranks_of("203.0.113.1\n" + own_node() + "\n", {"c"}) == own_node() + " 203.0.113.1 ");
  CHECK(ranks_of("203.0.113.1\n203.0.113.2\n203.0.113.1\n", {"c"}) == "203.0.113.1 203.0.113.2 ");
  // Two names of this host count as the same host.
  CHECK(ranks_of("localhost slots=2\n203.0.113.1\n127.0.0.1\n", {"c"}) == "localhost localhost 203.0.113.1 localhost ");
  // With a port, the name means another host that is reached through the address of this host.
  CHECK(ranks_of("203.0.113.1\nlocalhost:2222\n", {"c"}) == "203.0.113.1 localhost ");
  CHECK(ranks_of("203.0.113.1\nsomebody-else@localhost\n", {"c"}) == "203.0.113.1 localhost ");
  for (const std::string& address : own_addresses()) {
    if (address.find(':') != std::string::npos) continue;
    CHECK(ranks_of("203.0.113.1\n" + address + "\n", {"c"}) == address + " 203.0.113.1 ");
  }

  // With --gpus in the command, -n counts hosts. Each host has one process for each GPU.
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
               "[--num-workers] expected at most 2 hosts, because -n counts hosts if the command has --gpus, got 3."));
  CHECK(make_plan(parse_options({"c", "--gpus", "0,1,2"})).site_of_mpi_rank.size() == 3);
}

TEST_CASE("a quoted word reaches the shell's command unchanged") {
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

TEST_CASE("ssh gets only valid host names, after --") {
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

TEST_CASE("while a port is reserved, no other process gets the port, but rank 0 can listen on it") {
  const RendezvousPorts m = choose_rendezvous_ports(0, true);
  CHECK((m.port > 0 && m.ps_port > 0 && m.port != m.ps_port && m.ports == 1));
  // Takes all ports that the system gives. The test requests ports of both kinds.
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
      CHECK_THROWS_WITH_AS((void)choose_rendezvous_ports(m.port, true), doctest::Contains("--root-port"), UsageError);
  }
  const RendezvousPorts far = choose_rendezvous_ports(4711, false);
  CHECK((far.port == 4711 && far.ports == 1 && far.ps_port == 4712));
  CHECK(choose_rendezvous_ports(0, false).ports > 1);
  CHECK(new_secret().size() == 64);
  CHECK(new_secret() != new_secret());
}

TEST_CASE("an order of the launcher to an agent arrives unchanged") {
  Order o;
  o.job = "0123456789abcdef";
  o.host = "b";
  o.folder = "/a b";
  o.root_port = 7;
  o.root_ports = 3;
  o.ps_port = 11;
  o.secret = "s3cret";
  o.through_mpi = o.elastic = o.joins = true;
  o.epoch = 3;
  o.generation = 4;
  o.founders = 5;
  o.kept = "17 0 a run";
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
         back.through_mpi && !back.keeps && back.elastic && back.joins && back.epoch == 3 && back.generation == 4 &&
         back.founders == 5 && back.kept == o.kept && back.processes.size() == 2 &&
         back.processes[1].role == "server"));
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

TEST_CASE("options are accepted with - and _") {
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
  CHECK(contains(parse_options({"--help", "--nonsense"}).text, "Usage"));
}

TEST_CASE("the error for a wrong option names the option") {
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
           {{"-n", "1", "-s", "0", "--env-server", "A=1", "c"}, "--env-server"},
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
