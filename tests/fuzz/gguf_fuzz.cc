// Any bytes as a GGUF file: parsed, and everything in it read. With clang: -fsanitize=fuzzer.
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/gguf.h"
#include "engine/vocabulary.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  const auto gguf = pdserve::engine::Gguf::Parse(std::as_bytes(std::span(data, size_bytes)));
  if (!gguf.ok()) return 0;
  uint64_t sum = 0;
  for (const auto& tensor : gguf->tensors()) {
    for (const std::byte byte : tensor.bytes) sum += std::to_integer<uint64_t>(byte);
  }
  const auto vocabulary = pdserve::engine::ReadVocabulary(*gguf);
  volatile uint64_t kept = sum + vocabulary.ok();
  (void)kept;
  return 0;
}
