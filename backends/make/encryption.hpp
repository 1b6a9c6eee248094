// SPDX-License-Identifier: MIT
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include <tutti/backends/make/strategy_options.hpp>
#include <tutti/comm/net/secure_stream.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#ifdef TUTTI_HAS_OPENSSL
#include <tutti/backends/openssl/openssl.hpp>
#endif

// Whether the connections of a strategy are encrypted. Only units that make strategies include this file.
namespace tutti::detail {

// Returns the choice of the options, or else of the variable TUTTI_ENCRYPT.
[[nodiscard]] inline Encryption wanted_encryption(const StrategyOptions& o) {
  const char* const variable = std::getenv("TUTTI_ENCRYPT");
  if (o.encrypt != Encryption::automatic || variable == nullptr || *variable == '\0') return o.encrypt;
  const std::string_view word = variable;
  if (word == "on") return Encryption::on;
  if (word == "off") return Encryption::off;
  if (word != "auto") fail<UsageError>("environment TUTTI_ENCRYPT", "auto, on or off", {"'", printable(word), "'"});
  return Encryption::automatic;
}

// Refuses a choice that the strategy cannot carry out. processes: of the job.
inline void check_encryption(const StrategyOptions& o, std::string_view strategy, int processes) {
  const Encryption wanted = wanted_encryption(o);
  const bool servers = strategy == "ps" || strategy == "ps_async";
  if (wanted == Encryption::automatic || strategy == "solo" || (processes == 1 && !servers)) return;
  if (wanted == Encryption::on && (strategy == "mpi" || strategy == "nccl"))
    fail<UsageError>("--encrypt", "gloo, ps or ps_async with on, because the library sends the data of this strategy",
                     {"strategy ", strategy}, "use --strategy gloo, or encrypt the network: see SECURITY.md");
  if (servers && (wanted == Encryption::on) == o.ps_plain)
    fail<UsageError>("--encrypt", {o.ps_plain ? "off" : "on", o.ps_plain ? " with --ps-plain" : " without --ps-plain"},
                     wanted == Encryption::on ? "on" : "off", "leave out --encrypt: --ps-plain decides for servers");
#ifndef TUTTI_HAS_OPENSSL
  if (wanted == Encryption::on && strategy == "gloo")
    fail<DeviceError>("--encrypt", "a build with OpenSSL for on", "a build without it",
                      "install libssl-dev and build again");
#endif
}

// Returns what encrypts connections between hosts, or null if they are not encrypted.
[[nodiscard]] inline const SecureStreams* secure_streams(const StrategyOptions& o) {
#ifdef TUTTI_HAS_OPENSSL
  if (wanted_encryption(o) != Encryption::off) {
    static const TlsStreams streams;
    return &streams;
  }
#else
  static_cast<void>(o);
#endif
  return nullptr;
}

// Returns the options with the fact whether connections between hosts are encrypted, so that the arbiter refuses a
// process that differs.
[[nodiscard]] inline StrategyOptions with_encryption_fact(StrategyOptions o) {
  const SecureStreams* const streams = secure_streams(o);
  o.facts.add("encryption between hosts", streams == nullptr ? "off" : streams->name());
  return o;
}

}  // namespace tutti::detail
