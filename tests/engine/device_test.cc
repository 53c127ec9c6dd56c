#include "engine/device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace pdserve::engine {
namespace {

TEST(Team, RunsTheWorkOnceOnEachThread) {
  for (const int32_t threads : {1, 2, 3, 8}) {
    const auto team = Team::Create(threads);
    ASSERT_EQ(team->threads(), threads);
    std::vector<int32_t> runs(threads);  // each element touched by its thread alone
    for (int32_t round = 1; round <= 200; ++round) {
      team->Run([&](int32_t thread) { ++runs[thread]; });
      ASSERT_EQ(runs, std::vector<int32_t>(threads, round));
    }
  }
}

TEST(Team, CallerIsThreadZero) {
  const auto team = Team::Create(3);
  std::vector<std::thread::id> ids(3);
  team->Run([&](int32_t thread) { ids[thread] = std::this_thread::get_id(); });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_NE(ids[1], ids[0]);
  EXPECT_NE(ids[2], ids[0]);
  EXPECT_NE(ids[1], ids[2]);
}

TEST(Team, ZeroThreadsMeansOnePerCore) { EXPECT_GE(Team::Create(0)->threads(), 1); }

TEST(Team, WhatOneLoopWroteTheNextReadsOnAnyThread) {
  const auto team = Team::Create(4);
  std::vector<int64_t> from(4, 1);
  std::vector<int64_t> to(4);
  for (int32_t round = 0; round < 500; ++round) {
    team->Run([&](int32_t thread) { to[thread] = from[(thread + 1) % 4] + 1; });
    from.swap(to);
  }
  EXPECT_EQ(from, std::vector<int64_t>(4, 501));
}

TEST(Team, WorksAfterItsThreadsHaveGoneToSleep) {
  const auto team = Team::Create(2);
  for (int32_t round = 0; round < 5; ++round) {
    std::atomic<int32_t> ran{0};
    // Thread 1 arrives long after thread 0's spin has ended, so thread 0 must be woken.
    team->Run([&](int32_t thread) {
      if (thread == 1) {
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
  int32_t runs = 0;
  for (int32_t caller = 0; caller < 4; ++caller) {
    std::thread([&] {
      for (int32_t round = 0; round < 50; ++round) {
        team->Run([&](int32_t thread) {
          if (thread == 1) ++runs;
        });
      }
    }).join();
  }
  EXPECT_EQ(runs, 200);
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
