#include "router/gate.h"

#include <thread>

#include "gtest/gtest.h"

namespace pdserve::router {
namespace {

class GateTest : public ::testing::Test {
 protected:
  std::unique_ptr<Metrics> metrics_ = Metrics::Create();
  SystemClock clock_;
  Gate gate_{4, metrics_.get(), &clock_};
};

TEST_F(GateTest, CountsChoicesAgainstItsLimit) {
  EXPECT_EQ(gate_.Enter(), Gate::Entry::kOpen);
  EXPECT_TRUE(gate_.Widen(2));
  EXPECT_EQ(gate_.Enter(), Gate::Entry::kOpen);
  EXPECT_EQ(gate_.Enter(), Gate::Entry::kFull);
  gate_.Leave(3);
  EXPECT_EQ(gate_.Enter(), Gate::Entry::kOpen);
  EXPECT_TRUE(gate_.Widen(2));
  EXPECT_EQ(gate_.Enter(), Gate::Entry::kFull);
}

TEST_F(GateTest, ChoicesThatFindNoRoomAreNotCounted) {
  gate_.Enter();
  gate_.Enter();
  EXPECT_FALSE(gate_.Widen(3));
  gate_.Leave(1);
  EXPECT_TRUE(gate_.Widen(3));
  EXPECT_EQ(gate_.Enter(), Gate::Entry::kFull);
}

TEST_F(GateTest, ARequestAboveTheLimitIsServedAlone) {
  gate_.Enter();
  EXPECT_TRUE(gate_.Widen(9));
  EXPECT_EQ(gate_.Enter(), Gate::Entry::kFull);
  gate_.Leave(10);
  gate_.Enter();
  gate_.Enter();
  EXPECT_FALSE(gate_.Widen(9));
}

TEST_F(GateTest, NobodyEntersAShutGateAndItWaitsForThoseInside) {
  gate_.Enter();
  gate_.Shut();
  EXPECT_EQ(gate_.Enter(), Gate::Entry::kClosed);
  EXPECT_FALSE(gate_.WaitUntilEmpty(absl::ZeroDuration()));
  std::thread leaving([&] { gate_.Leave(1); });
  EXPECT_TRUE(gate_.WaitUntilEmpty(absl::Seconds(20)));
  leaving.join();
}

}  // namespace
}  // namespace pdserve::router
