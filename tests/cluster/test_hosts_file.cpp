// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

#include <tutti/cluster/launch/hosts_file.hpp>
#include <tutti/comm/net/host_name.hpp>
#include <tutti/core/error.hpp>

#include "data/temp_folder.hpp"

using namespace tutti;
using test::contains;
using test::message_of;

TEST_CASE("lines of a hosts file are parsed into hosts") {
  const auto hosts = parse_hosts(
      "# a cluster\n"
      "\n"
      "10.0.0.1 slots=8\r\n"
      "  node-2.example.com:2222\tslots=3   # the second\n"
      "   \t \r\n"
      "localhost\n"
      "a_b #c\n"
      "[fe80::1%eth0]:22\n"
      "[2001:db8::2] slots=2\n"
      "ec2-user@c:22 slots=4\n"
      "_u.v@10.0.0.3\n"
      "localhost slots=1  # again\n"
      "10.0.0.1 slots=8\n"
      "#end",
      "f");
  REQUIRE(hosts.size() == 8);
  CHECK(hosts[6] == Host{"c", 22, 4, 0, "ec2-user"});
  CHECK(hosts[7] == Host{"10.0.0.3", 0, 1, 0, "_u.v"});
  CHECK(hosts[0] == Host{"10.0.0.1", 0, 8, 0});
  CHECK(hosts[1] == Host{"node-2.example.com", 2222, 3, 0});
  CHECK(hosts[2] == Host{"localhost", 0, 1, 0});
  CHECK(hosts[3] == Host{"a_b", 0, 1, 0});
  CHECK(hosts[4] == Host{"fe80::1%eth0", 22, 1, 0});
  CHECK(hosts[5] == Host{"2001:db8::2", 0, 2, 0});
  CHECK(hosts[0].line == 3);
  CHECK(hosts[5].line == 9);
  CHECK(parse_hosts("last", "f").size() == 1);
  CHECK(total_slots(hosts) == 21);
  CHECK(host_and_port(hosts[5].name, 7) == "[2001:db8::2]:7");
  CHECK(host_and_port("a", 7) == "a:7");
}

TEST_CASE("a line of any other form is refused, and the error gives the number of the line") {
  const std::string nul("a\0b", 3);
  for (const std::string& bad : {std::string("-oProxyCommand=touch x"),
                                 std::string("-oProxyCommand=touch"),
                                 std::string("host;touch"),
                                 std::string("$(touch x)"),
                                 std::string("a b"),
                                 std::string("a slots"),
                                 std::string("a slots=0"),
                                 std::string("a slots=-1"),
                                 std::string("a slots=+1"),
                                 std::string("a slots=4097"),
                                 std::string("a slots=1.5"),
                                 std::string("a slots=99999999999999999999"),
                                 std::string("a slots= 1"),
                                 std::string("a Slots=1"),
                                 std::string("a slots=1 slots=1"),
                                 std::string("a slots=1 max-slots=2"),
                                 std::string("a:"),
                                 std::string("a:0"),
                                 std::string("a:65536"),
                                 std::string("a:-1"),
                                 std::string("a:x"),
                                 std::string("a:1:2"),
                                 std::string(":22"),
                                 std::string("::1"),
                                 std::string("[::1"),
                                 std::string("[::1]22"),
                                 std::string("[a]"),
                                 std::string("[::1]:"),
                                 std::string("[fe80::1%]"),
                                 std::string("[fe80::1%-x]"),
                                 std::string(".a"),
                                 std::string("_a"),
                                 std::string("a/b"),
                                 std::string("@host"),
                                 std::string("user@"),
                                 std::string("-l@host"),
                                 std::string("a@b@c"),
                                 std::string("$(x)@host"),
                                 std::string("a#b"),
                                 std::string("a,b"),
                                 std::string("a\rb"),
                                 std::string("\xef\xbb\xbf") + "a",
                                 std::string("h\xc3\xb6st"),
                                 std::string(254, 'a'),
                                 nul,
                                 std::string("a slots=2#comment")}) {
    CAPTURE(bad);
    const auto message = message_of<DataError>([&] { (void)parse_hosts("good\n\n" + bad + "\nc\n", "hosts"); });
    CHECK(contains(message, "hosts line 3]"));
    for (const char c : message) CHECK(static_cast<unsigned char>(c) >= 0x20);
  }
  CHECK(contains(message_of<DataError>([] { (void)parse_hosts("a\nb\na slots=2\n", "f"); }), "slots as in line 1"));
  for (const char* other : {"a:22", "u@a", "a slots=3"})
    CHECK(!message_of<DataError>([&] { (void)parse_hosts(std::string("a\n") + other + "\n", "f"); }).empty());
  // A line that occurs twice counts once, also if the lines are not adjacent.
  CHECK(parse_hosts("a\nb\na\n", "f").size() == 2);
  CHECK(contains(message_of<DataError>([] { (void)parse_hosts("# nothing\n\n", "f"); }),
                 "[f] expected at least one host"));
  CHECK(!message_of<DataError>([] { (void)parse_hosts(std::string(max_hosts_file_bytes + 1, '\n'), "f"); }).empty());
}

TEST_CASE("a hosts file is read, and the error for a missing file names the file") {
  const test::TempFolder folder;
  test::write_text(folder / "hosts", "a slots=2\nb\n");
  CHECK(read_hosts_file(folder / "hosts").size() == 2);
  CHECK(contains(message_of<DataError>([&] { (void)read_hosts_file(folder / "none"); }), "none"));
  test::write_text(folder / "hosts", "a\nb b\n");
  CHECK(contains(message_of<DataError>([&] { (void)read_hosts_file(folder / "hosts"); }), "hosts line 2]"));
}

TEST_CASE("slots are filled in order, and from the start again if there are more processes than slots") {
  const auto hosts = parse_hosts("a slots=2\nb\nc slots=3\n", "f");
  using Places = std::vector<std::size_t>;
  CHECK(place_processes(hosts, 0).empty());
  CHECK(place_processes(hosts, 3) == Places{0, 0, 1});
  CHECK(place_processes(hosts, 6) == Places{0, 0, 1, 2, 2, 2});
  CHECK(place_processes(hosts, 10) == Places{0, 0, 1, 2, 2, 2, 0, 0, 1, 2});
}
