// SPDX-License-Identifier: MIT
// Tests the words that "did you mean" suggests.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <tutti/core/nearest_word.hpp>

using namespace tutti;

TEST_CASE("the distance of two words is the number of edits") {
  CHECK(edit_distance("epochs", "epochs") == 0);
  CHECK(edit_distance("epohcs", "epochs") == 2);
  CHECK(edit_distance("", "lr") == 2);
  CHECK(edit_distance("batchsize", "batch-size") == 1);
}

TEST_CASE("the suggestion is a similar word, or else one with the same beginning, or else one that contains the word") {
  const std::vector<std::string> known{"epochs", "batch-size", "batch-of", "label-smoothing", "lr", "num-servers"};
  CHECK(nearest_word("epohcs", known) == "epochs");
  CHECK(nearest_word("batchsize", known) == "batch-size");
  CHECK(nearest_word("batch-s", known) == "batch-of");  // the words differ in two letters
  CHECK(nearest_word("num-serv", known) == "num-servers");
  CHECK(nearest_word("smoothing", known) == "label-smoothing");
  CHECK(nearest_word("servers", known) == "num-servers");
  CHECK(nearest_word("lx", known) == "lr");
  CHECK(nearest_word("x", known).empty());
  CHECK(nearest_word("learning", known).empty());
  CHECK(nearest_word("", known).empty());
}
