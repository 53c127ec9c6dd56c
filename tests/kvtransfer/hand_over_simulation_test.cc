// Both state machines against each other on a fake clock, over a link that a seed makes slow,
// lossy, repeating, damaging or dead. One seed is one run.
#include <deque>
#include <optional>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "kvtransfer/receiver.h"
#include "kvtransfer/sender.h"
#include "tests/kvtransfer/pump_parts.h"

namespace pdserve::kvtransfer {
namespace {

constexpr uint32_t kSmallBlock = 64;
constexpr HandOverLimits kLimits{kSmallBlock, kBlockTokens, 3 * kSmallBlock,
                                 3,           1000,         absl::Seconds(3)};

class Simulation {
 public:
  explicit Simulation(uint64_t seed)
      : random_(seed),
        num_blocks_(random_() % 12),
        from_(num_blocks_, random_() % 2 == 0, kSmallBlock),
        to_(num_blocks_, random_() % 2 == 0, kSmallBlock),
        sender_({TicketOf(1), num_blocks_, now_ + absl::Seconds(60)}, kLimits),
        first_block_(random_() % 3 == 0 ? random_() % (num_blocks_ + 1) : 0),
        receiver_({TicketOf(1),
                   "peer",
                   {},
                   {to_.spans().begin() + first_block_, to_.spans().end()},
                   now_ + absl::Seconds(50),
                   first_block_},
                  kLimits),
        trouble_(random_() % 3 == 0 ? 0 : 1 + random_() % 30) {
    from_.Fill(seed);
    for (uint32_t i = 0; i < first_block_; ++i) {
      std::memcpy(to_.spans()[i].data(), from_.spans()[i].data(), kSmallBlock);
    }
  }

  void Run() {
    ToReceiver(LinkReady{1});
    for (int step = 0; step < 20'000 && !(sender_end_ && receiver_end_); ++step) Step();
    ASSERT_TRUE(sender_end_.has_value()) << "the sender hangs";
    ASSERT_TRUE(receiver_end_.has_value()) << "the receiver hangs";
    if (receiver_end_->ok()) {
      EXPECT_TRUE(delivered_ok_);
      EXPECT_EQ(receiver_.record().num_tokens, RecordFor(num_blocks_).num_tokens);
      EXPECT_EQ(receiver_.record().first_token, RecordFor(num_blocks_).first_token);
    }
    EXPECT_TRUE(!sender_end_->ok() || receiver_end_->ok());
    EXPECT_TRUE(to_.GapsAreClean());
    EXPECT_TRUE(to_.AllPoison());
    EXPECT_TRUE(trouble_ > 0 || (receiver_end_->ok() && sender_end_->ok()));
  }

 private:
  struct InLanding {
    AcceptPiece accept;
    std::span<const std::byte> payload;
  };

  bool Chance(uint64_t per_thousand) { return random_() % 1000 < per_thousand; }

  void Step() {
    now_ += absl::Milliseconds(random_() % 20);
    if (Chance(trouble_) && Chance(30)) return Cut();
    if (Chance(trouble_) && Chance(20)) {
      return ToSender(Withdrawn{absl::CancelledError("withdrawn")});
    }
    if (Chance(trouble_) && Chance(20)) {
      return ToReceiver(CancelAsked{absl::CancelledError("cancelled")});
    }
    switch (random_() % 7) {
      case 0:
        return Prefill();
      case 1:
        if (sender_.wants_window()) ToSender(WindowOpen{});
        return;
      case 2:
      case 3:
        return DeliverToReceiver();
      case 4:
        return DeliverToSender();
      case 5:
        return FinishLanding();
      default:
        ToSender(TimePassed{});
        return ToReceiver(TimePassed{});
    }
  }

  void Prefill() {
    if (extended_ < num_blocks_) {
      const uint32_t count = 1 + random_() % (num_blocks_ - extended_);
      ToSender(Extended{from_.Range(extended_, extended_ + count)});
      extended_ += count;
    } else if (!committed_) {
      committed_ = true;
      ToSender(Committed{RecordFor(num_blocks_)});
    }
  }

  void DeliverToReceiver() {
    if (landing_ || to_receiver_.empty()) return;
    const SendControl message = to_receiver_.front();
    if (!Chance(trouble_)) to_receiver_.pop_front();       // else it comes once more
    if (Chance(trouble_ / 2)) return PieceIsOut(message);  // lost
    const v1::Control& control = message.control;
    if (control.has_piece()) {
      PieceIsOut(message);
      arriving_ = message.payload;
      return ToReceiver(PieceArrived{control.piece(), message.payload.size()});
    }
    if (control.has_commit()) return ToReceiver(CommitArrived{control.commit()});
    if (control.has_cancel()) return ToReceiver(PeerCancelled{control.cancel().reason()});
  }

  // The sender's memory is let go of at the latest when the piece has been delivered.
  void PieceIsOut(const SendControl& message) {
    if (!message.control.has_piece() || in_flight_ == 0) return;
    --in_flight_;
    ToSender(PieceSent{});
  }

  void DeliverToSender() {
    if (to_sender_.empty()) return;
    const v1::Control control = to_sender_.front();
    if (!Chance(trouble_)) to_sender_.pop_front();
    if (Chance(trouble_ / 2)) return;
    if (control.has_fetch()) return ToSender(Fetched{control.fetch()});
    if (control.has_resend()) return ToSender(ResendAsked{control.resend().sequence()});
    if (control.has_acknowledge()) return ToSender(Acknowledged{});
    if (control.has_cancel()) return ToSender(PeerCancelled{control.cancel().reason()});
  }

  void FinishLanding() {
    if (!landing_) return;
    const InLanding landing = *std::exchange(landing_, std::nullopt);
    size_t at = 0;
    for (const auto& part : landing.accept.parts) {
      ASSERT_FALSE(receiver_end_.has_value()) << "a byte would land after the end";
      std::memcpy(part.data(), landing.payload.data() + at, part.size());
      at += part.size();
    }
    if (Chance(trouble_)) landing.accept.parts[0][random_() % kSmallBlock] ^= std::byte{4};
    ToReceiver(PieceLanded{landing.accept.sequence, absl::OkStatus()});
  }

  // The fence: what is under way ends first, then the link.
  void Cut() {
    const absl::Status reason = absl::UnavailableError("cut");
    to_receiver_.clear();
    to_sender_.clear();
    if (landing_) {
      const uint32_t sequence = std::exchange(landing_, std::nullopt)->accept.sequence;
      ToReceiver(PieceLanded{sequence, reason});
    }
    while (in_flight_ > 0) {
      --in_flight_;
      ToSender(PieceSent{reason});
    }
    ToSender(LinkLost{reason});
    ToReceiver(LinkLost{reason});
    to_receiver_.clear();
    to_sender_.clear();
  }

  void ToSender(const SenderEvent& event) {
    for (const Action& action : sender_.Apply(event, now_)) {
      ASSERT_FALSE(sender_end_.has_value()) << "the sender acts after its end";
      if (const auto* send = std::get_if<SendControl>(&action)) {
        if (send->control.has_piece()) ++in_flight_;
        to_receiver_.push_back(*send);
      } else if (const auto* end = std::get_if<EndHandOver>(&action)) {
        EXPECT_EQ(in_flight_, 0) << "the sender ends with pieces in flight";
        sender_end_ = end->status;
      } else if (std::holds_alternative<CloseLink>(action)) {
        return Cut();
      }
    }
  }

  void ToReceiver(const ReceiverEvent& event) {
    for (const Action& action : receiver_.Apply(event, now_)) {
      ASSERT_FALSE(receiver_end_.has_value()) << "the receiver acts after its end";
      if (const auto* send = std::get_if<SendControl>(&action)) {
        to_sender_.push_back(send->control);
      } else if (const auto* accept = std::get_if<AcceptPiece>(&action)) {
        landing_ = InLanding{*accept, arriving_};
      } else if (const auto* end = std::get_if<EndHandOver>(&action)) {
        EXPECT_FALSE(landing_.has_value()) << "the receiver ends with a receive running";
        receiver_end_ = end->status;
        delivered_ok_ = to_.Same(from_);
        to_.Poison();  // the blocks belong to someone else now
      } else if (std::holds_alternative<CloseLink>(action)) {
        return Cut();
      }
    }
  }

  std::mt19937_64 random_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  uint32_t num_blocks_;
  Blocks from_, to_;
  Sender sender_;
  uint32_t first_block_;  // what is before it is there already
  Receiver receiver_;
  uint64_t trouble_;  // per thousand
  uint32_t extended_ = 0;
  bool committed_ = false;
  int in_flight_ = 0;
  bool delivered_ok_ = false;
  std::deque<SendControl> to_receiver_;
  std::deque<v1::Control> to_sender_;
  std::span<const std::byte> arriving_;
  std::optional<InLanding> landing_;
  std::optional<absl::Status> sender_end_, receiver_end_;
};

TEST(HandOverSimulationTest, EverySeedEndsBothSidesOnceAndNeverWithWrongBytes) {
  const uint64_t first = 1'000'000ull * ::testing::UnitTest::GetInstance()->random_seed();
  for (uint64_t seed = first; seed < first + 20'000; ++seed) {
    SCOPED_TRACE(seed);
    Simulation(seed).Run();
    if (::testing::Test::HasFailure()) {
      std::printf("first failing seed %llu\n", static_cast<unsigned long long>(seed));
      return;
    }
  }
}

}  // namespace
}  // namespace pdserve::kvtransfer
