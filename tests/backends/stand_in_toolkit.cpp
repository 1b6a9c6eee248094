// SPDX-License-Identifier: MIT
// Replaces a library of CUDA: tests copy it into folders that look like toolkits.
extern "C" int tutti_toolkit_answer() { return 42; }
