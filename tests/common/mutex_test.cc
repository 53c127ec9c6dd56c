#include "common/mutex.h"

#include <thread>

#include "gtest/gtest.h"

namespace pdserve {
namespace {

TEST(LastWaitTest, EndsWithTheCondition) {
  Mutex mutex;
  CondVar changed;
  bool is_over = false;
  std::thread thread([&] {
    MutexLock lock(&mutex);
    is_over = true;
    changed.NotifyAll();
  });
  {
    MutexLock lock(&mutex);
    for (LastWait wait; !is_over;) wait.For(changed, mutex);
  }
  thread.join();
}

TEST(LastWaitDeathTest, IsNotForEver) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto wait_for_nothing = [] {
    Mutex mutex;
    CondVar changed;
    MutexLock lock(&mutex);
    for (LastWait wait(/*seconds=*/1);;) wait.For(changed, mutex);
  };
  EXPECT_DEATH(wait_for_nothing(), "check failed");
}

}  // namespace
}  // namespace pdserve
