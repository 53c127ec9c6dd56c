#include "engine/device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace pdserve::engine {
namespace {

TEST(Team, EveryItemIsTakenOnceInSharesThatAreNotTooLong) {
  for (const int32_t threads : {1, 2, 3, 8}) {
    const auto team = Team::Create(threads);
    ASSERT_EQ(team->threads(), threads);
    for (const int32_t count : {0, 1, 2, 7, 100}) {
      for (const int32_t piece : {1, 3, 200}) {
        std::vector<std::atomic<int32_t>> taken(count);
        team->Run(count, piece, [&](int32_t thread, Share some) {
          EXPECT_TRUE(thread >= 0 && thread < threads);
          EXPECT_TRUE(some.first < some.last && some.last - some.first <= piece);
          for (int32_t i = some.first; i < some.last; ++i) ++taken[i];
        });
        for (const auto& times : taken) ASSERT_EQ(times.load(), 1);
      }
    }
  }
}

TEST(Team, CallerIsThreadZeroAndNoTwoThreadsHaveOneNumber) {
  const auto team = Team::Create(3);
  std::vector<std::atomic<bool>> inside(3);
  const auto caller = std::this_thread::get_id();
  for (int32_t round = 0; round < 200; ++round) {
    team->Run(30, 1, [&](int32_t thread, Share) {
      EXPECT_FALSE(inside[thread].exchange(true));
      EXPECT_EQ(thread == 0, std::this_thread::get_id() == caller);
      inside[thread] = false;
    });
  }
}

// While the last item waits for all others, somebody else must be doing those; and while thread 0
// is kept, the others do all the rest.
TEST(Team, WhatAThreadHasNotBegunAnotherTakes) {
  const auto team = Team::Create(2);
  for (int32_t round = 0; round < 50; ++round) {
    std::atomic<int32_t> done{0};
    team->Run(10, 1, [&](int32_t, Share some) {
      if (some.first == 0) {
        while (done.load() < 9) std::this_thread::yield();
      }
      ++done;
    });
    EXPECT_EQ(done.load(), 10);
  }
}

TEST(Team, ZeroThreadsMeansOnePerCore) { EXPECT_GE(Team::Create(0)->threads(), 1); }

TEST(Team, WhatOneLoopWroteTheNextReadsOnAnyThread) {
  const auto team = Team::Create(4);
  std::vector<int64_t> from(16, 1);
  std::vector<int64_t> to(16);
  for (int32_t round = 0; round < 500; ++round) {
    team->Run(16, 1, [&](int32_t, Share one) { to[one.first] = from[(one.first + 5) % 16] + 1; });
    from.swap(to);
  }
  EXPECT_EQ(from, std::vector<int64_t>(16, 501));
}

TEST(Team, WorksAfterItsThreadsHaveGoneToSleep) {
  const auto team = Team::Create(2);
  for (int32_t round = 0; round < 5; ++round) {
    std::atomic<int32_t> ran{0};
    // Whoever waits for the other item waits longer than a spin, and must be woken.
    team->Run(2, 1, [&](int32_t, Share some) {
      if (some.first == 1) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
        while (std::chrono::steady_clock::now() < end) {
        }
      }
      ran.fetch_add(1);
    });
    EXPECT_EQ(ran.load(), 2);
  }
}

TEST(Team, CallersOnDifferentThreadsTakeTurns) {
  const auto team = Team::Create(2);
  std::atomic<int32_t> runs{0};
  for (int32_t caller = 0; caller < 4; ++caller) {
    std::thread([&] {
      for (int32_t round = 0; round < 50; ++round) {
        team->Run(2, 1, [&](int32_t, Share) { ++runs; });
      }
    }).join();
  }
  EXPECT_EQ(runs.load(), 400);
}

TEST(Team, EndsWithoutEverHavingRun) {
  for (int32_t i = 0; i < 20; ++i) Team::Create(3);
}

TEST(ShareOf, SharesCoverAllItemsWithoutOverlap) {
  for (const int32_t count : {0, 1, 5, 64, 1000}) {
    for (const int32_t threads : {1, 2, 3, 7}) {
      int32_t next = 0;
      for (int32_t thread = 0; thread < threads; ++thread) {
        const Share share = ShareOf(count, thread, threads);
        EXPECT_EQ(share.first, next);
        next = share.last;
      }
      EXPECT_EQ(next, count);
    }
  }
}

}  // namespace
}  // namespace pdserve::engine
