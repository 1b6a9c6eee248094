// SPDX-License-Identifier: MIT
// Replaces one of CUDA's libraries: tests copy it to the folders of trees that look like toolkits.
extern "C" int tutti_toolkit_answer() { return 42; }
