// SPDX-License-Identifier: MIT
// Tests the choices of library kernels that ranks share as a text.
#include <tutti/backends/cuda/cudnn/kernel_choices.hpp>

#include <doctest/doctest.h>

#include <string>

using namespace tutti;
using cuda::KernelChoices;

namespace {

const std::string device = "cudnn 9.19.0 | NVIDIA H100 sm_90";

// A rank that has measured "a" and "b" and guessed "c".
KernelChoices rank(const std::string& name) {
  KernelChoices c;
  c.record("a", {true, name + " a"});
  c.record("b", {true, "both\n1 b"});
  c.record("c", {false, name + " c"});
  return c;
}

}  // namespace

TEST_CASE("ranks take all choices of one rank, and keep their own for other problems") {
  KernelChoices first = rank("first"), second = rank("second"), late;
  first.record("of the first rank", {true, "x"});
  second.record("of the second rank", {true, "y"});
  CHECK(second.find("a") == nullptr);
  const std::string text = first.text(device);
  const auto taken = second.take(device, text);
  CHECK_FALSE(taken.other_device);
  CHECK(taken.changed == 2);
  CHECK(*second.find("a") == KernelChoices::Choice{true, "first a"});
  CHECK(*second.find("b") == KernelChoices::Choice{true, "both\n1 b"});
  CHECK(*second.find("c") == KernelChoices::Choice{false, "first c"});
  CHECK(second.find("of the first rank")->text == "x");
  CHECK(second.find("of the second rank")->text == "y");
  CHECK(second.take(device, text).changed == 0);
  // The rank that made these choices, and a rank without choices.
  const auto own = first.take(device, text);
  CHECK(own.changed == 0);
  CHECK(first.text(device) == text);
  CHECK(late.text(device).empty());
  CHECK(late.take(device, text).changed == 0);
  CHECK(late.text(device) == text);
}

TEST_CASE("choices for another device are not taken") {
  KernelChoices first = rank("first"), second = rank("second");
  const std::string before = second.text("another GPU");
  const auto taken = second.take("another GPU", first.text(device));
  CHECK(taken.other_device);
  CHECK(taken.changed == 0);
  CHECK(second.text("another GPU") == before);
  CHECK(second.find("a")->text == "second a");  // its choices are kept from now on
}

TEST_CASE("if a measured choice has no form as text, all ranks choose again") {
  KernelChoices first = rank("first"), second = rank("second");
  first.record("a", {true, ""});
  first.record("c", {false, ""});
  const std::string text = first.text(device);
  CHECK(first.take(device, text).changed == 1);
  CHECK(second.take(device, text).changed == 1);
  CHECK(first.find("a") == nullptr);
  CHECK(second.find("a") == nullptr);
  CHECK(first.must_guess("a"));
  CHECK(second.must_guess("a"));
  CHECK_FALSE(second.must_guess("b"));
  CHECK(second.find("c")->text == "second c");  // a guess, as on the first rank
  // The second rank has measured what the first rank has guessed.
  second.record("c", {true, "second c"});
  CHECK(second.take(device, text).changed == 1);
  CHECK(second.find("c") == nullptr);
  CHECK(second.must_guess("c"));
}

TEST_CASE("a damaged text is an error and changes no choice") {
  const std::string text = rank("first").text(device);
  const std::string before = rank("second").text(device);
  for (std::size_t n = 1; n < text.size(); ++n) {
    KernelChoices second = rank("second");
    bool refused = false;
    try {
      (void)second.take(device, text.substr(0, n));
    } catch (const DataError&) {
      refused = true;
    }
    CHECK(refused);
    CHECK(second.text(device) == before);
    CHECK(second.find("a") == nullptr);
  }
  KernelChoices second = rank("second");
  const auto choice = [](const char* count) { return "1\nd" + std::string(count) + "1\na8\nmeasured1\nx"; };
  CHECK_NOTHROW((void)second.take("d", choice("1\n1")));
  for (const std::string& damaged :
       {std::string(), std::string("x"), std::string("-1\nx"), std::string("+1\nx"),
        std::string("99999999999999999999\nx"), std::string("18446744073709551615\nx"), choice("1\n2"), choice("1\n0"),
        choice("2\n01"), choice("0\n"), std::string("1\nd1\n11\na8\nMeasured1\nx"), choice("1\n1") + "1",
        choice("1\n1") + '\0'}) {
    CAPTURE(damaged);
    CHECK_THROWS_AS((void)second.take("d", damaged), DataError);
  }
}
