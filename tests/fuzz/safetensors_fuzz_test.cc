// Runs the fuzz target briefly over mutations of a good file; PD_FUZZ_SEED repeats a run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes);

namespace pdserve {
namespace {

// Edits of the header's text; the length before it follows, most of the time.
std::string Mutate(const std::string& good, std::mt19937_64& random) {
  const auto below = [&](size_t end) { return end == 0 ? 0 : random() % end; };
  uint64_t length = 0;
  std::memcpy(&length, good.data(), 8);
  std::string header = good.substr(8, length);
  const std::string data = good.substr(8 + length, below(2) == 0 ? std::string::npos : 4096);
  const char* const words[] = {"0",
                               "-1",
                               "18446744073709551615",
                               "1e99",
                               "null",
                               "[",
                               "]",
                               "{",
                               "}",
                               ",",
                               ":",
                               "\"",
                               "[]",
                               "\\u0000",
                               "F4",
                               "BOOL",
                               "\"shape\":[1],",
                               "7",
                               "00",
                               "\xff"};
  for (uint64_t edits = 1 + below(3); edits > 0 && !header.empty(); --edits) {
    const size_t at = below(std::min<size_t>(header.size(), below(4) == 0 ? 100000 : 400));
    switch (below(4)) {
      case 0:
        header[at] = static_cast<char>(random());
        break;
      case 1:
        header.replace(at, below(12), words[below(std::size(words))]);
        break;
      case 2:
        header.erase(at, 1 + below(24));
        break;
      default:
        header.insert(at, header.substr(below(header.size()), 1 + below(80)));
    }
  }
  length = below(20) == 0 ? random() >> below(64) : header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), 8);
  return bytes + header + data;
}

TEST(SafetensorsFuzzTest, NoMutationOfAGoodFileCrashesTheParser) {
  const char* given = std::getenv("PD_FUZZ_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20260902;
  std::printf("PD_FUZZ_SEED=%llu\n", static_cast<unsigned long long>(seed));
  const std::string good = testing::ReadFile(testing::TestData("bad/st-good/model.safetensors"));
  ASSERT_GT(good.size(), 10000u);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 20000; ++i) {
    // A copy of exactly its size, so that a sanitizer sees a read past the end.
    const std::string bytes = Mutate(good, random);
    const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
  }
}

}  // namespace
}  // namespace pdserve
