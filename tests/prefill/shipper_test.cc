#include "prefill/shipper.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/testing/fake_clock.h"
#include "tests/testing/rig.h"

namespace pdserve::prefill {
namespace {

using engine::Owner;
using pdserve::testing::TicketOf;

class ShipperTest : public ::testing::Test {
 protected:
  ShipperTest() { EXPECT_TRUE(rig_.pool->Allocate(3, blocks_)); }
  absl::Status Offer(uint64_t ticket) {
    return shipper_.Offer({TicketOf(ticket), 3, absl::InfiniteFuture()});
  }

  pdserve::testing::FakeClock clock_;
  pdserve::testing::FakeFabric fabric_;
  pdserve::testing::Rig rig_{{}, &fabric_, &clock_};
  Shipper shipper_{rig_.pool.get(), &rig_.pump};
  std::vector<BlockId> blocks_;
};

TEST_F(ShipperTest, ShippedBlocksStayHeldUntilThePumpHasEnded) {
  ASSERT_TRUE(Offer(1).ok());
  shipper_.Ship(TicketOf(1), blocks_, 2);
  shipper_.Ship(TicketOf(1), blocks_, 2);  // nothing new
  rig_.pool->Release(blocks_, Owner::kSequence);
  EXPECT_EQ(rig_.pool->counts().transfer, 2);
  shipper_.Withdraw(TicketOf(1), "over");
  shipper_.Withdraw(TicketOf(1), "over");
  EXPECT_EQ(shipper_.num_withdrawn(), 1u);
  EXPECT_EQ(rig_.pool->counts().transfer, 2);
  shipper_.Ended(TicketOf(1));
  EXPECT_EQ(rig_.pool->counts().free, rig_.pool->capacity());
  EXPECT_EQ(shipper_.num_open() + shipper_.num_withdrawn(), 0u);
}

TEST_F(ShipperTest, AWithdrawnShipmentTakesNoMoreBlocks) {
  ASSERT_TRUE(Offer(1).ok());
  shipper_.Withdraw(TicketOf(1), "over");
  shipper_.Ship(TicketOf(1), blocks_, 3);
  rig_.pool->Release(blocks_, Owner::kSequence);
  EXPECT_EQ(rig_.pool->counts().free, rig_.pool->capacity());
}

TEST_F(ShipperTest, ATicketInUseIsRefused) {
  ASSERT_TRUE(Offer(1).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Offer(1)));
}

TEST_F(ShipperTest, AnUnknownTicketsEndIsIgnored) {
  shipper_.Ended(TicketOf(9));
  shipper_.Withdraw(TicketOf(9), "over");
  EXPECT_EQ(shipper_.num_open(), 0u);
}

}  // namespace
}  // namespace pdserve::prefill
