// SPDX-License-Identifier: MIT
// Trains a net on a folder of images, see trainer/folder_choices.hpp and train/results.hpp.
#include <algorithm>
#include <string>
#include <vector>

#include "report_page.hpp"
#include "tools/train/results.hpp"
#include "tools/trainer/imagenet.hpp"
#include "tools/trainer/training_main.hpp"

int main(int argc, char** argv) {
  using namespace tutti::trainer;
  const std::vector<std::string> said(argv + std::min(argc, 1), argv + argc);
  // The folder is the first word: tutti-train FOLDER is train_imagenet --data-dir FOLDER.
  std::vector<std::string> words(argv, argv + argc);
  if (words.size() > 1 && !words[1].starts_with('-')) words.insert(words.begin() + 1, "--data-dir");
  std::vector<char*> arguments;
  for (std::string& w : words) arguments.push_back(w.data());
  Task task = imagenet_task();
  task.finished = [&said](const RunOptions& o) {
    tutti::train_tool::write_results(
        o, said, {tutti::report_tool::page_html, tutti::report_tool::page_style, tutti::report_tool::page_script});
  };
  return training_main(static_cast<int>(arguments.size()), arguments.data(), Program::tutti_train, task);
}
