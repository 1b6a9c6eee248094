// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <tutti/data/records/records.hpp>
#include <tutti/datasets/image_folder/image_folder.hpp>

#include "data/record_files.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

static_assert(Records<ImageFolder>);

std::string error_of(const std::filesystem::path& folder, const std::vector<std::string>& classes = {}) {
  return message_of<DataError>([&] { const ImageFolder f(folder, classes); });
}

}  // namespace

TEST_CASE("images of class folders are read in the order of class and name") {
  const TempFolder folder;
  for (const char* name : {"n02/b.JPEG", "n02/a.jpg", "n01/x.Png", "n03/sub/deep.jpeg", "n03/z.JPG", "n02/notes.txt",
                           "n02/.hidden.jpg", "n02/jpg", ".git/x.jpg", "n03/.cache/y.jpg", "list.txt"})
    write_text(folder / name, std::string("bytes of ") + name);
  const ImageFolder f(folder.path());
  CHECK(f.class_names() == std::vector<std::string>{"n01", "n02", "n03"});
  CHECK(f.classes() == 3);
  CHECK(f.block() == 1);
  REQUIRE(f.size() == 5);
  const std::vector<std::string> expected{"n01/x.Png", "n02/a.jpg", "n02/b.JPEG", "n03/sub/deep.jpeg", "n03/z.JPG"};
  const std::vector<std::int32_t> labels{0, 1, 1, 2, 2};
  Bytes bytes;
  for (std::size_t k = 0; k < 5; ++k) {
    const auto i = static_cast<std::int64_t>(k);
    CHECK(f.read(i, bytes) == labels[k]);
    CHECK(std::string(bytes.begin(), bytes.end()) == "bytes of " + expected[k]);
    CHECK(f.where(i) == (folder / expected[k]).string());
  }
  // Counts files that are neither JPEG nor PNG, but not hidden files and files next to the class folders.
  CHECK(f.left_out() == image_folder::LeftOut{{".txt", 1}, {"", 1}});
  CHECK(image_folder::describe(f.left_out()) == "2 files are neither JPEG nor PNG: without extension 1, .txt 1");
  // Opens the same folder with a slash at the end of its path, and through links.
  CHECK(ImageFolder(folder.path() / "").where(0) == (folder / expected[0]).string());
  std::filesystem::create_directory_symlink(folder / "n01", folder / "n00");
  std::filesystem::create_symlink(folder / "n01" / "x.Png", folder / "n01" / "link.png");
  CHECK(ImageFolder(folder.path()).size() == 8);
  // A link without a target in place of a class folder is not left out silently.
  std::filesystem::create_symlink("nowhere", folder / "n04");
  CHECK(contains(error_of(folder.path()),
                 "expected folders of classes, got n04, a link to nowhere, which does not exist"));
  std::filesystem::remove(folder / "n04");
  // Links to folders below a class folder, and links without a target, are counted.
  std::filesystem::create_directory_symlink(folder / "n01", folder / "n03" / "more");
  std::filesystem::create_symlink("nowhere", folder / "n03" / "gone.png");
  std::filesystem::create_symlink("nowhere", folder / "n03" / ".hidden");
  CHECK(image_folder::describe(ImageFolder(folder.path()).left_out()) ==
        "2 files are neither JPEG nor PNG: without extension 1, .txt 1; not followed: links to folders 1, links whose "
        "target is missing 1");
}

TEST_CASE("left-out files are described by kind, the most frequent first") {
  CHECK(image_folder::describe({}).empty());
  CHECK(image_folder::describe({{".gif", 1}}) == "1 file is neither JPEG nor PNG: .gif 1");
  CHECK(image_folder::describe({{".gif", 1}, {".webp", 3}}) == "4 files are neither JPEG nor PNG: .webp 3, .gif 1");
  image_folder::LeftOut many{{".z", 5}};
  for (char c = 'a'; c < 'k'; ++c) many[std::string(".") + c] = 1;
  CHECK(image_folder::describe(many) ==
        "15 files are neither JPEG nor PNG: .z 5, .a 1, .b 1, .c 1, .d 1, .e 1, .f 1, .g 1 and 3 other kinds");
  // Counts names in capital letters, in nested folders, and (below) in a folder without classes.
  const TempFolder folder;
  for (const char* name : {"n01/a.jpg", "n01/b.WebP", "n01/deep/c.webp", "n01/.hidden.gif"})
    write_text(folder / name, "x");
  CHECK(image_folder::describe(ImageFolder(folder.path()).left_out()) == "2 files are neither JPEG nor PNG: .webp 2");
  write_text(folder / "labels.txt", "n01\n");
  CHECK(image_folder::describe(ImageFolder::flat(folder / "n01/deep/..", folder / "labels.txt").left_out()) ==
        "2 files are neither JPEG nor PNG: .webp 2");
}

TEST_CASE("errors in a folder of class folders name the file") {
  const TempFolder folder;
  CHECK(contains(error_of(folder / "none"), "none"));
  CHECK(contains(error_of(folder.path()), "a folder for each class"));
  write_text(folder / "n01/a.jpg", "x");
  write_text(folder / "n02/readme.txt", "x");
  const std::string e = error_of(folder.path());
  CHECK(contains(e, "class folder " + (folder / "n02").string()));
  CHECK(contains(e, "readme.txt"));
  std::filesystem::remove(folder / "n02/readme.txt");
  CHECK(contains(error_of(folder.path()), "the empty folder"));
  std::filesystem::remove(folder / "n02");
  CHECK(error_of(folder.path()).empty());
}

TEST_CASE("labels of test images are the numbers of the training classes") {
  const TempFolder folder;
  write_text(folder / "n02/a.jpg", "x");
  const ImageFolder f(folder.path(), {"n01", "n02", "n03"});
  CHECK(f.classes() == 3);
  CHECK(f.label(0) == 1);
  CHECK(contains(error_of(folder.path(), {"n01", "n03"}), "n02"));
  CHECK_THROWS_AS(ImageFolder(folder.path(), {"n02", "n01"}), UsageError);
}

TEST_CASE("the labels of a folder without class folders come from a text file") {
  const TempFolder folder;
  for (const char* n : {"c.JPEG", "a.JPEG", "b.JPEG"}) write_text(folder / ("val/" + std::string(n)), n);
  const auto open = [&](const std::string& labels, const std::vector<std::string>& classes = {}) {
    write_text(folder / "labels.txt", labels);
    return ImageFolder::flat(folder / "val", folder / "labels.txt", classes);
  };
  const auto f = open("n2\nn1 \r\nn2");
  CHECK(f.class_names() == std::vector<std::string>{"n1", "n2"});
  REQUIRE(f.size() == 3);
  Bytes bytes;
  CHECK(f.read(0, bytes) == 1);
  CHECK(std::string(bytes.begin(), bytes.end()) == "a.JPEG");
  CHECK(f.label(1) == 0);
  CHECK(f.label(2) == 1);
  CHECK(open("n2\nn1\nn2\n", {"n0", "n1", "n2"}).label(0) == 2);
  const auto error = [&](const std::string& labels, const std::vector<std::string>& classes = {}) {
    return message_of<DataError>([&] { (void)open(labels, classes); });
  };
  CHECK(contains(error("n1\nn2\n"), "each of 3 images"));
  CHECK(contains(error("n1\nn2\nn3\nn4\n"), "each of 3 images"));
  CHECK(contains(error("n1\n\nn3\n"), "line 2"));
  CHECK(contains(error("n1\nn2\nn1\n", {"n1"}), "line 2"));
}

TEST_CASE("empty, oversized and vanished files have different errors") {
  const TempFolder folder;
  write_text(folder / "n/a.jpg", "");
  write_text(folder / "n/b.jpg", "x");
  write_text(folder / "n/c.jpg", "x");
  std::filesystem::resize_file(folder / "n/c.jpg", most_record_bytes + 1);
  const ImageFolder f(folder.path());
  Bytes bytes;
  CHECK(contains(message_of<DataError>([&] { (void)f.read(0, bytes); }), "a.jpg"));
  CHECK(contains(message_of<DataError>([&] { (void)f.read(2, bytes); }), "c.jpg"));
  CHECK(bytes.capacity() < 1000);
  std::filesystem::remove(folder / "n/b.jpg");
  CHECK(contains(message_of<DataError>([&] { (void)f.read(1, bytes); }), "b.jpg"));
}
