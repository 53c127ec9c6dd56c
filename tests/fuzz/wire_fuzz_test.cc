// Drives the wire fuzz target without a fuzzer: valid frames of every kind, changed by seed.
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kvtransfer/handshake.h"
#include "kvtransfer/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace pdserve::kvtransfer {
namespace {

std::vector<v1::Control> ValidControls() {
  std::vector<v1::Control> controls(8);
  *controls[0].mutable_hello() = MakeHello(PumpOptions{}, Incarnation{5});
  controls[1].mutable_fetch()->set_ticket(std::string(16, 't'));
  controls[1].mutable_fetch()->set_first_token_needed(33);
  controls[1].mutable_fetch()->set_max_piece_bytes(128);
  v1::Piece* piece = controls[2].mutable_piece();
  piece->set_num_blocks(2);
  piece->set_payload_bytes(128);
  controls[3].mutable_commit()->set_num_pieces(1);
  controls[3].mutable_commit()->set_num_tokens(100);
  controls[4].mutable_acknowledge()->set_fetch(1);
  controls[5].mutable_resend()->set_sequence(1);
  controls[6].mutable_cancel()->set_reason("why");
  controls[7].mutable_heartbeat()->set_sequence(9);
  return controls;
}

void Change(std::string& text, std::mt19937_64& random) {
  const auto at = [&] { return text.empty() ? 0 : random() % text.size(); };
  switch (random() % 6) {
    case 0:
      if (!text.empty()) text[at()] ^= static_cast<char>(1 << random() % 8);
      return;
    case 1:
      if (!text.empty()) text[at()] = static_cast<char>(random());
      return;
    case 2:
      return text.resize(at());
    case 3:
      text.insert(at(), std::string(1 + random() % 8, static_cast<char>(random())));
      return;
    case 4:
      text += text.substr(at());
      return;
    default:
      if (!text.empty()) text[at()] = "\0\x7F\x80\xFF"[random() % 4];
  }
}

TEST(WireFuzzTest, NoChangedFrameBreaksAPromise) {
  const uint64_t seed = ::testing::UnitTest::GetInstance()->random_seed();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const std::vector<v1::Control> valid = ValidControls();
  for (int i = 0; i < 300'000; ++i) {
    std::string control = valid[random() % valid.size()].SerializeAsString();
    for (uint64_t changes = random() % 4; changes > 0; --changes) Change(control, random);
    const uint64_t sizes[] = {0, 64, 128, 256, random() % 1000, random()};
    // Checksums are right, so that the change gets through to what lies behind them.
    std::string frame = EncodeFrameHead(control, sizes[random() % 6]);
    if (random() % 4 == 0) Change(frame, random);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(frame.data()), frame.size());
  }
}

}  // namespace
}  // namespace pdserve::kvtransfer
