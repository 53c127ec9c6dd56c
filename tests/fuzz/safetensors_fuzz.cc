// Any bytes as a safetensors file: parsed, and every tensor read. With clang: -fsanitize=fuzzer.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "engine/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  const auto tensors =
      pdserve::engine::ParseSafetensors(std::as_bytes(std::span(data, size_bytes)));
  if (!tensors.ok()) return 0;
  uint64_t sum = 0;
  size_t total_bytes = 0;
  for (const auto& tensor : *tensors) {
    for (const std::byte byte : tensor.bytes) sum += std::to_integer<uint64_t>(byte);
    total_bytes += tensor.bytes.size();
    if (tensor.rows() * tensor.cols() / tensor.type->block_values * tensor.type->block_bytes !=
        tensor.bytes.size()) {
      std::abort();
    }
  }
  if (total_bytes > size_bytes) std::abort();  // then some overlap
  volatile uint64_t kept = sum;
  (void)kept;
  return 0;
}
