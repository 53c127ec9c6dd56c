// Cache blocks with known bytes, for the tests of hand-overs. A test owns them; one thread at a
// time, but for what a transport writes while a fetch runs.
#ifndef PDSERVE_TESTS_KVTRANSFER_BLOCKS_H_
#define PDSERVE_TESTS_KVTRANSFER_BLOCKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

namespace pdserve::kvtransfer {

inline constexpr uint32_t kBlockBytes = 4096;
inline constexpr uint32_t kBlockTokens = 32;
inline constexpr std::byte kPoison{0xA5};

/// `count` blocks; adjacent, or apart by a gap that must stay as it is.
class Blocks {
 public:
  Blocks(size_t count, bool adjacent, size_t block_bytes = kBlockBytes)
      : block_bytes_(block_bytes),
        stride_(adjacent ? block_bytes : block_bytes + 64),
        memory_(count * stride_, kPoison) {
    for (size_t i = 0; i < count; ++i) {
      spans_.push_back(std::span(memory_).subspan(i * stride_, block_bytes));
    }
  }
  void Fill(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (const auto& span : spans_) {
      for (size_t at = 0; at < span.size(); at += 8) {
        const uint64_t word = random();
        std::memcpy(span.data() + at, &word, std::min<size_t>(8, span.size() - at));
      }
    }
  }
  void Poison() { std::fill(memory_.begin(), memory_.end(), kPoison); }
  bool AllPoison() const {
    return std::all_of(memory_.begin(), memory_.end(), [](std::byte b) { return b == kPoison; });
  }
  bool Same(const Blocks& other) const {
    for (size_t i = 0; i < spans_.size(); ++i) {
      if (std::memcmp(spans_[i].data(), other.spans_[i].data(), block_bytes_) != 0) return false;
    }
    return true;
  }
  bool GapsAreClean() const {
    for (size_t i = 0; i < spans_.size(); ++i) {
      for (size_t at = block_bytes_; at < stride_; ++at) {
        if (memory_[i * stride_ + at] != kPoison) return false;
      }
    }
    return true;
  }
  const std::vector<std::span<std::byte>>& spans() const { return spans_; }
  std::vector<std::span<const std::byte>> Range(size_t begin, size_t end) const {
    return {spans_.begin() + begin, spans_.begin() + end};
  }
  std::vector<std::span<const std::byte>> All() const { return Range(0, spans_.size()); }

 private:
  size_t block_bytes_;
  size_t stride_;
  std::vector<std::byte> memory_;
  std::vector<std::span<std::byte>> spans_;
};

}  // namespace pdserve::kvtransfer

#endif  // PDSERVE_TESTS_KVTRANSFER_BLOCKS_H_
