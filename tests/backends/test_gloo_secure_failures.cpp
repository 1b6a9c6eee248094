// SPDX-License-Identifier: MIT
// takes long
// optimised
// The tests of test_gloo_failures.cpp, with encrypted connections between hosts.
#include <tutti/backends/openssl/openssl.hpp>

#include "test_gloo_failures.cpp"

namespace {

const TlsStreams tls;
const bool encrypted = (usual_streams = &tls) != nullptr;

}  // namespace
