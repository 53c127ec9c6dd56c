#include "engine/checkpoint/fingerprint.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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

Fingerprint ComputeFingerprint(std::span<const std::span<const std::byte>> files,
                               const std::string& text, Team& team) {
  std::string head_text = text;
  std::vector<std::span<const std::byte>> leaves;
  for (const auto file : files) {
    absl::StrAppend(&head_text, "file of ", file.size(), " bytes\n");
    for (size_t at = 0; at < file.size(); at += kLeafBytes) {
      leaves.push_back(file.subspan(at, std::min(kLeafBytes, file.size() - at)));
    }
  }
  std::vector<Digest> digests(leaves.size());
  team.Run(static_cast<int32_t>(leaves.size()), 1, [&](int32_t /*thread*/, Share some) {
    for (int32_t i = some.first; i < some.last; ++i) {
      digests[i] = Sha256(leaves[i].data(), leaves[i].size());
    }
  });
  const Digest head = Sha256(head_text.data(), head_text.size());
  std::vector<uint8_t> root(head.begin(), head.end());
  for (const Digest& leaf : digests) root.insert(root.end(), leaf.begin(), leaf.end());
  return {Sha256(root.data(), root.size())};
}

}  // namespace pdserve::engine
