#include "engine/fingerprint.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/check.h"

namespace pdserve::engine {
namespace {

constexpr size_t kLeafBytes = size_t{4} << 20;
using Digest = std::array<uint8_t, 32>;

Digest Sha256(const void* data, size_t size_bytes) {
  Digest digest;
  unsigned int length = 0;
  PD_CHECK(EVP_Digest(data, size_bytes, digest.data(), &length, EVP_sha256(), nullptr) == 1);
  PD_CHECK(length == digest.size());
  return digest;
}

}  // namespace

Fingerprint ComputeFingerprint(std::span<const std::byte> file, std::string_view text, Team& team) {
  std::vector<Digest> leaves((file.size() + kLeafBytes - 1) / kLeafBytes);
  std::atomic<size_t> next = 0;
  team.Run([&](int32_t) {
    for (size_t i = next++; i < leaves.size(); i = next++) {
      const auto leaf = file.subspan(i * kLeafBytes);
      leaves[i] = Sha256(leaf.data(), std::min(leaf.size(), kLeafBytes));
    }
  });
  const Digest head = Sha256(text.data(), text.size());
  std::vector<uint8_t> root(head.begin(), head.end());
  for (const Digest& leaf : leaves) root.insert(root.end(), leaf.begin(), leaf.end());
  return {Sha256(root.data(), root.size())};
}

}  // namespace pdserve::engine
