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

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  std::string Mutate(std::string bytes) {
    const int edits = 1 + int(random_() % 4);
    for (int i = 0; i < edits && !bytes.empty(); ++i) EditOnce(bytes);
    return bytes;
  }

 private:
  size_t Below(size_t end) { return random_() % end; }

  void EditOnce(std::string& bytes) {
    // Most of a file is tensor data, which nothing depends on: stay near the front.
    const size_t at = Below(std::min<size_t>(bytes.size(), random_() % 4 == 0 ? 40000 : 1200));
    switch (random_() % 5) {
      case 0:
        bytes[at] = static_cast<char>(random_());
        return;
      case 1: {  // a length, count or offset of a size that matters
        const uint64_t values[] = {0,          1,          random_() % 70, 0x7fffffff,
                                   0xffffffff, 1ull << 32, 1ull << 59,     ~0ull,
                                   ~0ull - 31, 1ull << 63, bytes.size()};
        const uint64_t value = values[Below(std::size(values))];
        std::memcpy(bytes.data() + at, &value, std::min<size_t>(8, bytes.size() - at));
        return;
      }
      case 2:
        bytes.resize(at);
        return;
      case 3:
        bytes.erase(at, 1 + Below(16));
        return;
      default:
        bytes.insert(at, bytes.substr(Below(bytes.size()), 1 + Below(64)));
    }
  }

  std::mt19937_64 random_;
};

TEST(GgufFuzzTest, NoMutationOfAGoodFileCrashesTheParser) {
  const char* given = std::getenv("PD_FUZZ_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20260901;
  std::printf("PD_FUZZ_SEED=%llu\n", static_cast<unsigned long long>(seed));
  const std::string good = testing::ReadFile(testing::TestData("bad/good.gguf"));
  ASSERT_GT(good.size(), 10000u);
  Mutator mutator(seed);
  for (int i = 0; i < 5000; ++i) {
    // A copy of exactly its size, so that a sanitizer sees a read past the end.
    const std::string bytes = mutator.Mutate(good);
    const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
  }
}

}  // namespace
}  // namespace pdserve
