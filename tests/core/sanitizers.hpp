// SPDX-License-Identifier: MIT
// Detects the sanitizer with which a program is compiled. GCC defines a macro, and Clang supports __has_feature. Eigen
// defines __has_feature for GCC too, always as false.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define TUTTI_TEST_ASAN
#elif defined(__SANITIZE_THREAD__)
#define TUTTI_TEST_TSAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TUTTI_TEST_ASAN
#elif __has_feature(thread_sanitizer)
#define TUTTI_TEST_TSAN
#endif
#endif
