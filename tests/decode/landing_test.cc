#include "decode/landing.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/testing/fake_clock.h"
#include "tests/testing/rig.h"

namespace pdserve::decode {
namespace {

using engine::Owner;
using pdserve::testing::TicketOf;

class LandingTest : public ::testing::Test {
 protected:
  LandingTest() { EXPECT_TRUE(rig_.pool->Allocate(2, blocks_)); }
  absl::Status Fetch() {
    return strip_.Fetch({TicketOf(1), "p", Incarnation{1}, absl::InfiniteFuture()}, blocks_, 0);
  }

  pdserve::testing::FakeClock clock_;
  pdserve::testing::FakeFabric fabric_;
  pdserve::testing::Rig rig_{{}, &fabric_, &clock_};
  LandingStrip strip_{rig_.pool.get(), &rig_.pump};
  std::vector<BlockId> blocks_;
};

TEST_F(LandingTest, ACancelledLandingKeepsItsBlocksUntilThePumpHasEnded) {
  ASSERT_TRUE(Fetch().ok());
  strip_.Cancel(TicketOf(1), "over");
  strip_.Cancel(TicketOf(1), "over");
  rig_.pool->Release(blocks_, Owner::kSequence);
  EXPECT_EQ(rig_.pool->counts().transfer, 2);
  EXPECT_EQ(strip_.num_cancelled(), 1u);
  strip_.Ended(TicketOf(1));
  EXPECT_EQ(rig_.pool->counts().free, rig_.pool->capacity());
  EXPECT_EQ(strip_.num_cancelled(), 0u);
}

TEST_F(LandingTest, ARefusedFetchHoldsNothing) {
  rig_.pump.RefuseNext(absl::ResourceExhaustedError("full"));
  EXPECT_TRUE(absl::IsResourceExhausted(Fetch()));
  EXPECT_FALSE(strip_.contains(TicketOf(1)));
  rig_.pool->Release(blocks_, Owner::kSequence);
  EXPECT_EQ(rig_.pool->counts().free, rig_.pool->capacity());
}

TEST_F(LandingTest, ATicketInUseIsRefused) {
  ASSERT_TRUE(Fetch().ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Fetch()));
}

TEST_F(LandingTest, AnUnknownTicketsEndIsIgnored) {
  strip_.Ended(TicketOf(9));
  strip_.Cancel(TicketOf(9), "over");
  EXPECT_EQ(strip_.num_cancelled(), 0u);
}

}  // namespace
}  // namespace pdserve::decode
