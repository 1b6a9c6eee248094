// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cstddef>
#include <string>

#include <tutti/comm/net/hmac_sha256.hpp>

using namespace tutti;

namespace {

std::string hex_of(const Digest256& d) {
  std::string text;
  for (const std::byte b : d) {
    text += "0123456789abcdef"[static_cast<unsigned>(b) >> 4];
    text += "0123456789abcdef"[static_cast<unsigned>(b) & 15U];
  }
  return text;
}
std::string sha256_of(const std::string& text) {
  Sha256 h;
  h.add(text);
  return hex_of(h.digest());
}

}  // namespace

TEST_CASE("SHA-256 and HMAC give the published values") {
  // Examples of FIPS 180-4; cases 1, 2, 4 and 6 of RFC 4231.
  CHECK(sha256_of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256_of(std::string(1'000'000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  const auto hmac = [](const std::string& key, const std::string& text) {
    return hex_of(HmacSha256(key).add(text).digest());
  };
  CHECK(hmac(std::string(20, '\x0b'), "Hi There") ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hmac("Jefe", "what do ya want for nothing?") ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  std::string counting;
  for (char c = 1; c <= 25; ++c) counting += c;
  CHECK(hmac(counting, std::string(50, '\xcd')) == "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  CHECK(hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(same_digest({}, {}));
  CHECK_FALSE(same_digest({}, {std::byte{1}}));
}
