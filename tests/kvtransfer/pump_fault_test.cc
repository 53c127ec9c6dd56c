// Pumps over every transport with the fault wrapper beneath both: whatever goes wrong, each
// hand-over ends once on each side, OK only with the right bytes, and its memory is free to go
// afterwards. The blocks are freed right after their end event, so that any later touch is seen by
// the sanitizers.
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kvtransfer/pump_thread.h"
#include "tests/kvtransfer/pump_parts.h"
#include "tests/testing/fault_transport.h"

namespace pdserve::kvtransfer {
namespace {

struct FaultyNode {
  FaultyNode(const PumpOptions& pump_options, const testing::FaultPlan& plan)
      : options(pump_options) {
    auto transport = std::make_unique<testing::FaultTransport>(
        *MakeTransport(options.transport, TransportOptionsOf(options)), plan);
    const std::string address = *transport->Listen(options.listen);
    pump = std::make_unique<PumpThread>(options, std::move(transport), address, &events,
                                        &Node::SystemTime());
  }

  PumpOptions options;
  EndRecorder events;
  std::unique_ptr<Pump> pump;
};

struct Outcomes {
  int both_good = 0;
  int fetch_good_only = 0;  // the acknowledgement was lost
  int failed = 0;
  uint32_t resent = 0;
};

class PumpFaultTest : public ::testing::TestWithParam<std::string> {
 protected:
  PumpOptions Options(uint64_t incarnation, absl::Duration peer_timeout) const {
    PumpOptions options = TestOptions(GetParam(), incarnation);
    options.peer_timeout = peer_timeout;
    options.fetch_wait = absl::Seconds(2);
    return options;
  }

  // `count` hand-overs at once through one pair of pumps; some are given up on the way.
  static Outcomes Run(FaultyNode& p, FaultyNode& d, uint64_t seed, absl::Duration limit,
                      bool give_up) {
    constexpr uint64_t kCount = 12;
    std::mt19937_64 random(seed);
    std::vector<std::unique_ptr<Blocks>> from, to;
    const absl::Time deadline = absl::Now() + limit;
    for (uint64_t i = 0; i < kCount; ++i) {
      const uint32_t blocks = random() % 40;
      from.push_back(std::make_unique<Blocks>(blocks, random() % 2 == 0));
      to.push_back(std::make_unique<Blocks>(blocks, random() % 2 == 0));
      from[i]->Fill(seed + i);
      const Ticket ticket = TicketOf(i + 1);
      EXPECT_TRUE(p.pump->Offer({ticket, blocks, deadline}).ok());
      EXPECT_TRUE(
          d.pump
              ->Fetch({ticket, p.pump->address(), p.options.incarnation, to[i]->spans(), deadline})
              .ok());
      const uint32_t half = blocks / 2;
      p.pump->Extend(ticket, from[i]->Range(0, half));
      if (give_up && random() % 8 == 0) d.pump->CancelFetch(ticket, "the test");
      p.pump->Extend(ticket, from[i]->Range(half, blocks));
      if (give_up && random() % 8 == 0) p.pump->Withdraw(ticket, "the test");
      p.pump->Commit(ticket, RecordFor(blocks));
    }
    Outcomes outcomes;
    for (uint64_t i = 0; i < kCount; ++i) {
      const Ticket ticket = TicketOf(i + 1);
      const auto fetched = d.events.WaitFetch(ticket);
      if (fetched.commit.ok()) {
        EXPECT_TRUE(to[i]->Same(*from[i])) << "OK with wrong bytes";
        EXPECT_EQ(fetched.commit->num_tokens, RecordFor(from[i]->spans().size()).num_tokens);
      }
      EXPECT_TRUE(to[i]->GapsAreClean());
      to[i].reset();
      const auto offered = p.events.WaitOffer(ticket);
      from[i].reset();
      EXPECT_TRUE(!offered.status.ok() || fetched.commit.ok()) << "P has let go of what D lacks";
      outcomes.both_good += offered.status.ok();
      outcomes.fetch_good_only += fetched.commit.ok() && !offered.status.ok();
      outcomes.failed += !fetched.commit.ok();
      outcomes.resent += fetched.stats.resent_pieces;
    }
    return outcomes;
  }
};

TEST_P(PumpFaultTest, MessagesThatAreHeldUpChangeNothing) {
  testing::FaultPlan plan;
  plan.seed = 1;
  plan.delay = 0.5;
  FaultyNode p(Options(11, absl::Seconds(20)), plan), d(Options(22, absl::Seconds(20)), plan);
  EXPECT_EQ(Run(p, d, 1, kPatience, false).both_good, 12);
}

TEST_P(PumpFaultTest, MessagesThatComeTwiceChangeNothing) {
  // Not the hellos: a second one is a fault of the peer, and the link would end.
  testing::FaultPlan plan;
  plan.seed = 2;
  plan.duplicate = 0.3;
  plan.spared = 1;
  FaultyNode p(Options(11, absl::Seconds(20)), plan), d(Options(22, absl::Seconds(20)), plan);
  EXPECT_EQ(Run(p, d, 2, kPatience, false).both_good, 12);
}

TEST_P(PumpFaultTest, ADamagedPieceNowAndThenIsSentAgain) {
  testing::FaultPlan plan;
  plan.seed = 3;
  plan.corrupt = 0.05;
  FaultyNode p(Options(11, absl::Seconds(20)), plan), d(Options(22, absl::Seconds(20)), plan);
  const Outcomes outcomes = Run(p, d, 3, kPatience, false);
  EXPECT_GT(outcomes.resent, 0u);
  EXPECT_GT(outcomes.both_good, 6);
}

TEST_P(PumpFaultTest, AllPiecesDamagedFailOnBothSides) {
  testing::FaultPlan plan;
  plan.seed = 4;
  plan.corrupt = 1;
  FaultyNode p(Options(11, absl::Seconds(20)), plan), d(Options(22, absl::Seconds(20)), plan);
  Blocks from(5, true), to(5, true);
  from.Fill(1);
  ASSERT_TRUE(p.pump->Offer({TicketOf(1), 5, Soon()}).ok());
  p.pump->Extend(TicketOf(1), from.All());
  p.pump->Commit(TicketOf(1), RecordFor(5));
  ASSERT_TRUE(
      d.pump->Fetch({TicketOf(1), p.pump->address(), p.options.incarnation, to.spans(), Soon()})
          .ok());
  EXPECT_EQ(d.events.WaitFetch(TicketOf(1)).commit.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(p.events.WaitOffer(TicketOf(1)).status.ok());
}

TEST_P(PumpFaultTest, EverySeedOfAllFaultsEndsEachSideOnceAndNeverWithWrongBytes) {
  const uint64_t first = ::testing::UnitTest::GetInstance()->random_seed();
  for (uint64_t seed = first; seed < first + 9 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    testing::FaultPlan plan;
    plan.seed = seed;
    plan.delay = 0.2;
    plan.duplicate = 0.02;
    plan.corrupt = 0.02;
    plan.drop = seed % 3 == 0 ? 0.01 : 0;
    plan.cut = seed % 3 == 1 ? 0.01 : 0;
    plan.stall = seed % 3 == 2 ? 0.005 : 0;
    FaultyNode p(Options(11, absl::Milliseconds(400)), plan);
    plan.seed += 1'000'000;
    FaultyNode d(Options(22, absl::Milliseconds(400)), plan);
    Run(p, d, seed, absl::Seconds(1), true);
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, PumpFaultTest, ::testing::ValuesIn(TransportNames()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace pdserve::kvtransfer
