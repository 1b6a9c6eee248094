// SPDX-License-Identifier: MIT
// A library that stands in for one of CUDA's: tests copy it to the folders of trees that look like toolkits.
extern "C" int tutti_toolkit_answer() { return 42; }
