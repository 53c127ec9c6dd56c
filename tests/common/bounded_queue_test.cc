#include "common/bounded_queue.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace pdserve {
namespace {

TEST(BoundedQueueTest, APushToAFullQueueIsRefusedAndKeepsTheItem) {
  BoundedQueue<std::vector<int>> queue(1);
  EXPECT_TRUE(queue.Push({1}));
  std::vector<int> item{2};
  EXPECT_FALSE(queue.Push(std::move(item)));
  EXPECT_EQ(item, std::vector<int>{2});
}

TEST(BoundedQueueTest, AClosedQueueStillGivesWhatItHolds) {
  BoundedQueue<int> queue(4);
  EXPECT_TRUE(queue.Push(1));
  queue.Close();
  EXPECT_FALSE(queue.Push(2));
  EXPECT_EQ(queue.TakeAll(absl::ZeroDuration()), std::vector<int>{1});
}

TEST(BoundedQueueTest, WakeEndsAWaitWithoutAnItem) {
  BoundedQueue<int> queue(4);
  std::thread waker([&] { queue.Wake(); });
  EXPECT_TRUE(queue.TakeAll(absl::InfiniteDuration()).empty());
  waker.join();
}

TEST(BoundedQueueTest, ManyPushersLoseNothingAndKeepTheirOrder) {
  constexpr int kEach = 1000;
  BoundedQueue<int> queue(2 * kEach);
  std::thread even([&] {
    for (int i = 0; i < kEach; ++i) queue.Push(2 * i);
  });
  std::thread odd([&] {
    for (int i = 0; i < kEach; ++i) queue.Push(2 * i + 1);
  });
  std::vector<int> all;
  while (all.size() < 2 * kEach) {
    for (int item : queue.TakeAll(absl::Seconds(30))) all.push_back(item);
  }
  even.join();
  odd.join();
  int last[2] = {-1, -1};
  for (int item : all) {
    EXPECT_GT(item, last[item % 2]);
    last[item % 2] = item;
  }
}

}  // namespace
}  // namespace pdserve
