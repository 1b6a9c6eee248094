// SPDX-License-Identifier: MIT
// Which sanitizer a program is compiled with. GCC defines a macro, Clang answers __has_feature; Eigen defines that for
// GCC too, and says no to everything.
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
