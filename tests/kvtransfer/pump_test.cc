// The pump over every transport: what a hand-over promises, from both ends.
#include "kvtransfer/pump.h"

#include <string>

#include "gtest/gtest.h"
#include "kvtransfer/transport.h"
#include "tests/kvtransfer/pump_parts.h"
#include "tests/testing/fake_clock.h"

namespace pdserve::kvtransfer {
namespace {

class PumpTest : public ::testing::TestWithParam<std::string> {
 protected:
  PumpOptions Prefill() const { return TestOptions(GetParam(), 11); }
  PumpOptions Decode() const { return TestOptions(GetParam(), 22); }

  static void OfferAll(Node& node, Ticket ticket, const Blocks& blocks) {
    const auto count = static_cast<uint32_t>(blocks.spans().size());
    ASSERT_TRUE(node.pump->Offer({ticket, count, Soon()}).ok());
    if (count > 0) node.pump->Extend(ticket, blocks.All());
    node.pump->Commit(ticket, RecordFor(count));
  }
};

TEST_P(PumpTest, AHandOverBringsEveryByteAndTheCommit) {
  Node p(Prefill()), d(Decode());
  for (const uint32_t count : {0u, 1u, 4u, 5u, 33u}) {
    for (const bool adjacent : {false, true}) {
      SCOPED_TRACE(count);
      const Ticket ticket = TicketOf(2 * count + adjacent + 1);
      Blocks from(count, adjacent), to(count, !adjacent);
      from.Fill(count);
      OfferAll(p, ticket, from);
      ASSERT_TRUE(d.pump->Fetch(FetchFrom(p, ticket, to)).ok());
      const auto fetched = d.events.WaitFetch(ticket);
      const auto offered = p.events.WaitOffer(ticket);
      ASSERT_TRUE(fetched.commit.ok()) << fetched.commit.status();
      ASSERT_TRUE(offered.status.ok()) << offered.status;
      EXPECT_TRUE(to.Same(from));
      EXPECT_TRUE(to.GapsAreClean());
      const CommitRecord expected = RecordFor(count);
      EXPECT_EQ(fetched.commit->num_tokens, expected.num_tokens);
      EXPECT_EQ(fetched.commit->first_token, expected.first_token);
      EXPECT_EQ(fetched.commit->sampler_state, expected.sampler_state);
      EXPECT_EQ(fetched.commit->queue_time, expected.queue_time);
      EXPECT_EQ(fetched.commit->prefill_time, expected.prefill_time);
      const uint32_t pieces = adjacent ? (count + 3) / 4 : count;
      EXPECT_EQ(fetched.stats.pieces, pieces);
      EXPECT_EQ(offered.stats.pieces, pieces);
      EXPECT_EQ(fetched.stats.bytes, uint64_t{count} * kBlockBytes);
      EXPECT_EQ(offered.stats.bytes, uint64_t{count} * kBlockBytes);
      EXPECT_EQ(fetched.stats.resent_pieces, 0u);
    }
  }
}

TEST_P(PumpTest, AFetchThatComesFirstWaitsForItsOffer) {
  Blocks from(6, true), to(6, true), other_from(1, true), other_to(1, true);
  Node p(Prefill()), d(Decode());
  from.Fill(1);
  other_from.Fill(2);
  ASSERT_TRUE(d.pump->Fetch(FetchFrom(p, TicketOf(1), to)).ok());
  // A whole hand-over behind it on the same link: the first fetch is with P by then.
  OfferAll(p, TicketOf(2), other_from);
  ASSERT_TRUE(d.pump->Fetch(FetchFrom(p, TicketOf(2), other_to)).ok());
  ASSERT_TRUE(d.events.WaitFetch(TicketOf(2)).commit.ok());
  EXPECT_FALSE(d.events.fetch_ended(TicketOf(1)));
  OfferAll(p, TicketOf(1), from);
  EXPECT_TRUE(d.events.WaitFetch(TicketOf(1)).commit.ok());
  EXPECT_TRUE(p.events.WaitOffer(TicketOf(1)).status.ok());
  EXPECT_TRUE(to.Same(from));
}

TEST_P(PumpTest, BlocksLeaveAsTheyAreFinished) {
  Blocks from(8, true), to(8, true);
  Node p(Prefill()), d(Decode());
  from.Fill(3);
  const Ticket ticket = TicketOf(1);
  ASSERT_TRUE(p.pump->Offer({ticket, 8, Soon()}).ok());
  ASSERT_TRUE(d.pump->Fetch(FetchFrom(p, ticket, to)).ok());
  for (size_t i = 0; i < 8; ++i) p.pump->Extend(ticket, from.Range(i, i + 1));
  p.pump->Commit(ticket, RecordFor(8));
  EXPECT_TRUE(d.events.WaitFetch(ticket).commit.ok());
  EXPECT_TRUE(to.Same(from));
}

TEST_P(PumpTest, AnOfferNobodyFetchesEndsAtItsDeadline) {
  testing::FakeClock clock;
  Blocks from(2, true);
  Node p(Prefill(), &clock);
  ASSERT_TRUE(p.pump->Offer({TicketOf(1), 2, clock.Now() + absl::Seconds(5)}).ok());
  p.pump->Extend(TicketOf(1), from.All());
  clock.Advance(absl::Seconds(6));
  p.pump->Withdraw(TicketOf(99), "wakes the pump");
  EXPECT_EQ(p.events.WaitOffer(TicketOf(1)).status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(PumpTest, AFetchWithoutAnOfferIsRefusedAfterItsWait) {
  auto options = Prefill();
  options.fetch_wait = absl::Milliseconds(50);
  Blocks to(2, true);
  Node p(options), d(Decode());
  ASSERT_TRUE(d.pump->Fetch(FetchFrom(p, TicketOf(1), to)).ok());
  const auto fetched = d.events.WaitFetch(TicketOf(1));
  EXPECT_EQ(fetched.commit.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(fetched.commit.status().message().find("no offer"), absl::string_view::npos);
  EXPECT_TRUE(to.AllPoison());
}

TEST_P(PumpTest, AFetchEndsAtItsOwnDeadline) {
  Blocks to(2, true);
  Node p(Prefill()), d(Decode());
  auto spec = FetchFrom(p, TicketOf(1), to);
  spec.deadline = absl::Now() + absl::Milliseconds(50);
  ASSERT_TRUE(d.pump->Fetch(spec).ok());
  EXPECT_FALSE(d.events.WaitFetch(TicketOf(1)).commit.ok());
  EXPECT_TRUE(to.AllPoison());
}

TEST_P(PumpTest, WithdrawMidwayEndsBothSides) {
  Blocks from(8, true), to(8, true);
  Node p(Prefill()), d(Decode());
  from.Fill(4);
  ASSERT_TRUE(p.pump->Offer({TicketOf(1), 8, Soon()}).ok());
  p.pump->Extend(TicketOf(1), from.Range(0, 5));
  ASSERT_TRUE(d.pump->Fetch(FetchFrom(p, TicketOf(1), to)).ok());
  p.pump->Withdraw(TicketOf(1), "the client has left");
  EXPECT_EQ(p.events.WaitOffer(TicketOf(1)).status.code(), absl::StatusCode::kCancelled);
  // Either P has told D, or the fetch came after and is refused as used.
  EXPECT_EQ(d.events.WaitFetch(TicketOf(1)).commit.status().code(), absl::StatusCode::kAborted);
}

TEST_P(PumpTest, NoByteLandsAfterACancelEvenIfTheBlocksAreReusedAtOnce) {
  Node p(Prefill()), d(Decode());
  const uint64_t seed = ::testing::UnitTest::GetInstance()->random_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (uint64_t round = 0; round < 200; ++round) {
    Blocks from(24, true), to(24, true), next_from(24, true);
    from.Fill(round);
    next_from.Fill(round + 1'000'000);
    const Ticket ticket = TicketOf(2 * round + 1), next = TicketOf(2 * round + 2);
    ASSERT_TRUE(p.pump->Offer({ticket, 24, Soon()}).ok());
    ASSERT_TRUE(d.pump->Fetch(FetchFrom(p, ticket, to)).ok());
    p.pump->Extend(ticket, from.All());
    for (uint64_t spin = random() % 2000; spin > 0; --spin) {
      if (d.events.fetch_ended(TicketOf(0))) break;  // some work of random length
    }
    d.pump->CancelFetch(ticket, "the client has left");
    ASSERT_FALSE(d.events.WaitFetch(ticket).commit.ok());
    // The blocks are ours again: another attempt takes them at once.
    OfferAll(p, next, next_from);
    to.Poison();
    ASSERT_TRUE(d.pump->Fetch(FetchFrom(p, next, to)).ok());
    ASSERT_TRUE(d.events.WaitFetch(next).commit.ok());
    ASSERT_TRUE(to.Same(next_from));
    p.pump->Withdraw(ticket, "the cancel may have come before the fetch");
    ASSERT_FALSE(p.events.WaitOffer(ticket).status.ok());
    from.Poison();  // and P's too
    ASSERT_TRUE(p.events.WaitOffer(next).status.ok());
    ASSERT_TRUE(to.Same(next_from));
  }
}

TEST_P(PumpTest, ATicketIsGoodOnce) {
  Blocks from(4, true), to(4, true), again(4, true);
  Node p(Prefill()), d(Decode()), other(TestOptions(GetParam(), 33));
  from.Fill(5);
  OfferAll(p, TicketOf(1), from);
  ASSERT_TRUE(d.pump->Fetch(FetchFrom(p, TicketOf(1), to)).ok());
  ASSERT_TRUE(d.events.WaitFetch(TicketOf(1)).commit.ok());
  ASSERT_TRUE(p.events.WaitOffer(TicketOf(1)).status.ok());
  ASSERT_TRUE(other.pump->Fetch(FetchFrom(p, TicketOf(1), again)).ok());
  const auto replay = other.events.WaitFetch(TicketOf(1));
  EXPECT_NE(replay.commit.status().message().find("used before"), absl::string_view::npos)
      << replay.commit.status();
  EXPECT_TRUE(again.AllPoison());
  EXPECT_EQ(p.pump->Offer({TicketOf(1), 4, Soon()}).code(), absl::StatusCode::kAlreadyExists);
}

TEST_P(PumpTest, ASecondFetchOfARunningTicketIsRefusedAndTheFirstGoesOn) {
  Blocks from(4, true), to(4, true), again(4, true);
  Node p(Prefill()), d(Decode()), other(TestOptions(GetParam(), 33));
  from.Fill(6);
  ASSERT_TRUE(p.pump->Offer({TicketOf(1), 4, Soon()}).ok());
  ASSERT_TRUE(d.pump->Fetch(FetchFrom(p, TicketOf(1), to)).ok());
  // A hand-over of its own behind it: D's fetch is with P by then.
  Blocks small(1, true), small_to(1, true);
  OfferAll(p, TicketOf(2), small);
  ASSERT_TRUE(d.pump->Fetch(FetchFrom(p, TicketOf(2), small_to)).ok());
  ASSERT_TRUE(d.events.WaitFetch(TicketOf(2)).commit.ok());
  ASSERT_TRUE(p.events.WaitOffer(TicketOf(2)).status.ok());
  ASSERT_TRUE(other.pump->Fetch(FetchFrom(p, TicketOf(1), again)).ok());
  EXPECT_NE(other.events.WaitFetch(TicketOf(1)).commit.status().message().find("in use"),
            absl::string_view::npos);
  p.pump->Extend(TicketOf(1), from.All());
  p.pump->Commit(TicketOf(1), RecordFor(4));
  EXPECT_TRUE(d.events.WaitFetch(TicketOf(1)).commit.ok());
  EXPECT_TRUE(to.Same(from));
  EXPECT_TRUE(again.AllPoison());
}

TEST_P(PumpTest, NodesThatDifferRefuseEachOtherNamingBothValues) {
  const auto refusal = [&](const PumpOptions& decode, Incarnation meant) {
    Node p(Prefill()), d(decode);
    Blocks to(0, true);
    auto spec = FetchFrom(p, TicketOf(1), to);
    spec.peer_incarnation = meant;
    EXPECT_TRUE(d.pump->Fetch(spec).ok());
    return std::string(d.events.WaitFetch(TicketOf(1)).commit.status().message());
  };
  auto options = Decode();
  options.block_bytes = 8192;
  std::string why = refusal(options, Incarnation{11});
  EXPECT_NE(why.find("8192"), std::string::npos) << why;
  EXPECT_NE(why.find("4096"), std::string::npos) << why;
  options = Decode();
  options.block_tokens = 16;
  why = refusal(options, Incarnation{11});
  EXPECT_NE(why.find("16"), std::string::npos) << why;
  EXPECT_NE(why.find("32"), std::string::npos) << why;
  options = Decode();
  options.fingerprint.value.fill(9);
  why = refusal(options, Incarnation{11});
  EXPECT_NE(why.find("0707"), std::string::npos) << why;
  EXPECT_NE(why.find("0909"), std::string::npos) << why;
  why = refusal(Decode(), Incarnation{12});
  EXPECT_NE(why.find("12"), std::string::npos) << why;
  EXPECT_NE(why.find("11"), std::string::npos) << why;
}

TEST_P(PumpTest, APeerThatIsGoneEndsTheHandOverOnTheOtherSide) {
  Blocks from(8, true), to(8, true);
  Node d(Decode());
  auto p = std::make_unique<Node>(Prefill());
  from.Fill(7);
  ASSERT_TRUE(p->pump->Offer({TicketOf(1), 8, Soon()}).ok());
  p->pump->Extend(TicketOf(1), from.Range(0, 4));
  ASSERT_TRUE(d.pump->Fetch(FetchFrom(*p, TicketOf(1), to)).ok());
  p->pump.reset();
  EXPECT_EQ(p->events.WaitOffer(TicketOf(1)).status.code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(d.events.WaitFetch(TicketOf(1)).commit.ok());
}

TEST_P(PumpTest, ARestartedPeerAtTheSameAddressIsReachedByAFreshLink) {
  Node d(Decode());
  auto options = Prefill();
  for (uint64_t life = 1; life <= 5; ++life) {
    options.incarnation = Incarnation{100 + life};
    Node p(options);
    ASSERT_NE(p.pump, nullptr);
    options.listen = p.pump->address();
    Blocks from(3, true), to(3, true);
    from.Fill(life);
    OfferAll(p, TicketOf(life), from);
    ASSERT_TRUE(d.pump->Fetch(FetchFrom(p, TicketOf(life), to)).ok());
    const auto fetched = d.events.WaitFetch(TicketOf(life));
    ASSERT_TRUE(fetched.commit.ok()) << fetched.commit.status();
    ASSERT_TRUE(p.events.WaitOffer(TicketOf(life)).status.ok());  // till then `from` is read
    EXPECT_TRUE(to.Same(from));
  }
}

TEST_P(PumpTest, NobodyListeningIsAnError) {
  Blocks to(1, true);
  Node d(Decode());
  std::string gone;
  {
    Node p(Prefill());
    gone = p.pump->address();
  }
  ASSERT_TRUE(d.pump->Fetch({TicketOf(1), gone, Incarnation{11}, to.spans(), Soon()}).ok());
  EXPECT_EQ(d.events.WaitFetch(TicketOf(1)).commit.status().code(), absl::StatusCode::kUnavailable);
}

TEST_P(PumpTest, ShutdownEndsEverythingOnce) {
  auto d = std::make_unique<Node>(Decode());
  Blocks from(2, true), to(40, true);
  Node p(Prefill());
  for (uint64_t i = 1; i <= 20; ++i) {
    ASSERT_TRUE(d->pump->Offer({TicketOf(i), 2, Soon()}).ok());
    d->pump->Extend(TicketOf(i), from.All());
    const std::vector<std::span<std::byte>> two(to.spans().begin() + 2 * (i - 1),
                                                to.spans().begin() + 2 * i);
    ASSERT_TRUE(
        d->pump->Fetch({TicketOf(i), p.pump->address(), p.options.incarnation, two, Soon()}).ok());
  }
  d->pump.reset();
  for (uint64_t i = 1; i <= 20; ++i) {
    ASSERT_TRUE(d->events.offer_ended(TicketOf(i)));
    ASSERT_TRUE(d->events.fetch_ended(TicketOf(i)));
  }
}

TEST_P(PumpTest, TooManyHandOversAreRefusedWithoutAnEvent) {
  auto options = Prefill();
  options.max_hand_overs = 3;
  Node p(options);
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(p.pump->Offer({TicketOf(i), 1, Soon()}).ok());
  EXPECT_EQ(p.pump->Offer({TicketOf(4), 1, Soon()}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(p.pump->Offer({TicketOf(1), 1, Soon()}).code(), absl::StatusCode::kAlreadyExists);
  p.pump->Withdraw(TicketOf(1), "makes room");
  p.events.WaitOffer(TicketOf(1));
  EXPECT_TRUE(p.pump->Offer({TicketOf(4), 1, Soon()}).ok());
  p.pump.reset();
  EXPECT_TRUE(p.events.offer_ended(TicketOf(4)));
}

TEST_P(PumpTest, CallsThatFindNoPlaceEndTheHandOverInsteadOfGettingLost) {
  auto options = Prefill();
  options.max_hand_overs = 1;
  Node p(options);
  ASSERT_TRUE(p.pump->Offer({TicketOf(1), 1u << 20, Soon()}).ok());
  Blocks block(1, true);
  for (int i = 0; i < 200'000 && !p.events.offer_ended(TicketOf(1)); ++i) {
    p.pump->Extend(TicketOf(1), block.All());
  }
  p.pump->Withdraw(TicketOf(1), "in case all found a place");
  EXPECT_FALSE(p.events.WaitOffer(TicketOf(1)).status.ok());
}

TEST_P(PumpTest, ACommitOfTheWrongSizeFailsTheOffer) {
  Blocks from(2, true);
  Node p(Prefill());
  ASSERT_TRUE(p.pump->Offer({TicketOf(1), 2, Soon()}).ok());
  p.pump->Extend(TicketOf(1), from.Range(0, 1));
  p.pump->Commit(TicketOf(1), RecordFor(2));
  EXPECT_EQ(p.events.WaitOffer(TicketOf(1)).status.code(), absl::StatusCode::kInternal);
}

TEST_P(PumpTest, AFetchOfMoreBlocksThanWereSentFails) {
  Blocks from(2, true), to(3, true);
  Node p(Prefill()), d(Decode());
  from.Fill(8);
  OfferAll(p, TicketOf(1), from);
  ASSERT_TRUE(d.pump->Fetch(FetchFrom(p, TicketOf(1), to)).ok());
  EXPECT_FALSE(d.events.WaitFetch(TicketOf(1)).commit.ok());
  EXPECT_FALSE(p.events.WaitOffer(TicketOf(1)).status.ok());
}

INSTANTIATE_TEST_SUITE_P(Transports, PumpTest, ::testing::ValuesIn(TransportNames()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace pdserve::kvtransfer
