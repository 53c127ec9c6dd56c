// The desk with real roles and step loops on their own threads, but without gRPC, so that
// ThreadSanitizer sees every thread's synchronisation.
#include "node/desk.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "engine/step_loop.h"
#include "tests/testing/fake_model.h"
#include "tests/testing/fake_pump.h"
#include "tests/testing/rig.h"

namespace pdserve::testing {
namespace {

using engine::Generation;

/// A session's messages, as they were sent.
class Port final : public node::SessionPort {
 public:
  void Send(SessionId, v1::NodeMessage message) override {
    MutexLock lock(&mutex_);
    if (message.has_finished()) finished_[message.finished().attempt()] = message.finished();
    if (message.has_refused()) ++refused_;
    if (message.has_load()) ++loads_;
    if (message.has_draining()) draining_ = true;
    for (const v1::AttemptTokens& part : message.tokens().attempts()) {
      std::vector<uint32_t>& tokens = tokens_[part.attempt()];
      tokens.insert(tokens.end(), part.token_ids().begin(), part.token_ids().end());
    }
    changed_.NotifyAll();
  }
  void Broadcast(const v1::NodeMessage& message) override { Send(SessionId{1}, message); }
  absl::Time DropSilent(absl::Time) override { return absl::InfiniteFuture(); }

  bool WaitEnded(size_t count) {
    const absl::Time end = absl::Now() + absl::Seconds(60);
    MutexLock lock(&mutex_);
    while (finished_.size() + refused_ < count && absl::Now() < end) {
      changed_.WaitFor(mutex_, end - absl::Now());
    }
    return finished_.size() + refused_ >= count;
  }
  std::map<uint64_t, v1::Finished> finished() {
    MutexLock lock(&mutex_);
    return finished_;
  }
  std::vector<uint32_t> tokens(uint64_t attempt) {
    MutexLock lock(&mutex_);
    return tokens_[attempt];
  }
  size_t refused() {
    MutexLock lock(&mutex_);
    return refused_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<uint64_t, v1::Finished> finished_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::vector<uint32_t>> tokens_ ABSL_GUARDED_BY(mutex_);
  size_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t loads_ ABSL_GUARDED_BY(mutex_) = 0;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

/// A node of both roles as node.cc composes it, on a fake pump.
class DeskNode final : public kvtransfer::PumpEvents {
 public:
  DeskNode(int32_t blocks, int32_t max_attempts, FakeFabric* fabric)
      : pump(fabric, "desk"), desk({.node_id = "n", .max_attempts = max_attempts}) {
    const size_t bytes = model.card().cache_layout.block_bytes();
    pool = *engine::BlockPool::Create(bytes, bytes * static_cast<size_t>(blocks));
    const engine::GenerationLimits limits{FakeModel::kVocab, 4096, blocks * 32};
    decode = std::make_unique<decode::Role>(
        decode::RoleOptions{limits, model.card().end_tokens, 32, 8}, pool.get(), &pump, &desk);
    prefill = std::make_unique<prefill::Role>(
        prefill::RoleOptions{limits, model.card().end_tokens, 32,
                             [this](engine::Sequence sequence, const engine::PhaseTimes& times) {
                               decode->Adopt(std::move(sequence), times, clock.Now());
                             }},
        pool.get(), &pump, &desk);
    loop = std::make_unique<engine::StepLoop>(
        engine::StepLoopOptions{.max_step_tokens = 48}, &model, pool.get(),
        std::vector<engine::StepClient*>{decode.get(), prefill.get(), &desk}, &clock);
    desk.Connect({pool.get(), prefill.get(), decode.get(), &port, metrics.get(), &clock});
    pump.set_events(this);
    loop->Start();
  }
  ~DeskNode() override { loop->Stop(); }

  void OnOfferFetched(Ticket ticket) override {
    loop->PostReserved([=, this] { desk.OnOfferFetched(ticket); });
  }
  void OnOfferEnded(Ticket ticket, absl::Status status,
                    const kvtransfer::TransferStats& stats) override {
    loop->PostReserved([=, this] { desk.OnOfferEnded(ticket, status, stats); });
  }
  void OnFetchEnded(Ticket ticket, absl::StatusOr<kvtransfer::CommitRecord> commit,
                    const kvtransfer::TransferStats& stats) override {
    loop->PostReserved([=, this] { desk.OnFetchEnded(ticket, commit, stats); });
  }
  template <typename Request>
  void Begin(const Request& request) {
    EXPECT_TRUE(loop->Post([this, request] { desk.Begin(request); }));
  }
  void Cancel(const engine::AttemptKey& key) {
    EXPECT_TRUE(loop->PostReserved([this, key] { desk.Cancel(key); }));
  }
  bool Drain() {
    loop->PostReserved([this] { desk.Drain(); });
    return desk.WaitUntilDrained(absl::Seconds(60));
  }

  SystemClock clock;
  FakeModel model;
  std::unique_ptr<Metrics> metrics = Metrics::Create();
  Port port;
  FakePump pump;
  node::Desk desk;
  std::unique_ptr<engine::BlockPool> pool;
  std::unique_ptr<decode::Role> decode;
  std::unique_ptr<prefill::Role> prefill;
  std::unique_ptr<engine::StepLoop> loop;
};

TEST(DeskTest, ManyThreadsOfRequestsAndCancelsEndWithEveryBlockFree) {
  constexpr uint64_t kEach = 60;
  constexpr uint64_t kThreads = 3;
  FakeFabric fabric;
  DeskNode p(40, 1000, &fabric);
  DeskNode d(40, 1000, &fabric);
  std::atomic<bool> running{true};
  std::thread transfers([&] {
    while (running) {
      fabric.Run();
      std::this_thread::yield();
    }
  });
  Mutex order;
  std::vector<std::thread> routers;
  for (uint64_t t = 0; t < kThreads; ++t) {
    routers.emplace_back([&, t] {
      std::mt19937_64 random(t + 1);
      for (uint64_t i = 1; i <= kEach; ++i) {
        const Generation generation =
            MakeGeneration(t * kEach + i, 1 + random() % 150, 1 + random() % 40);
        const uint64_t kind = random() % 4;
        MutexLock lock(&order);  // both nodes hear of them in one order, as from one router
        p.Begin(
            PrefillOf(generation, kind == 0 ? prefill::Mode::kWhole : prefill::Mode::kHandOver));
        if (kind != 0) d.Begin(DecodeOf(generation));
        if (kind == 1) p.Cancel(generation.key);
        if (kind == 1) d.Cancel(generation.key);
      }
    });
  }
  for (std::thread& router : routers) router.join();
  EXPECT_TRUE(p.port.WaitEnded(kThreads * kEach));
  EXPECT_TRUE(p.Drain());
  EXPECT_TRUE(d.Drain());
  running = false;
  transfers.join();
  p.loop->Stop();
  d.loop->Stop();
  for (DeskNode* node : {&p, &d}) {
    EXPECT_EQ(node->pool->counts().available(), node->pool->capacity());
    EXPECT_TRUE(node->pool->CheckIntegrity());
    EXPECT_EQ(node->model.corruptions(), 0);
    EXPECT_EQ(node->port.refused(), 0u);
  }
  size_t completed = 0;
  for (DeskNode* node : {&p, &d}) {
    for (const auto& [id, finished] : node->port.finished()) {
      if (finished.reason() != v1::FINISH_LENGTH) continue;
      ++completed;
      EXPECT_EQ(node->port.tokens(id).size(), finished.output_tokens());
    }
  }
  EXPECT_GT(completed, kThreads * kEach / 4);
}

TEST(DeskTest, AnIdleNodeThatKeepsABlockIsCounted) {
  FakeFabric fabric;
  DeskNode node(8, 10, &fabric);
  std::vector<BlockId> kept;
  EXPECT_TRUE(node.loop->Post([&] { EXPECT_TRUE(node.pool->Allocate(1, kept)); }));
  const Generation generation = MakeGeneration(1, 5, 3);
  node.Begin(PrefillOf(generation, prefill::Mode::kWhole));
  EXPECT_TRUE(node.port.WaitEnded(1));
  EXPECT_TRUE(node.Drain());
  node.loop->Stop();
  EXPECT_NE(node.metrics->Render().find("pdserve_kv_pool_faults_total{node=\"n\"} 1"),
            std::string::npos);
}

}  // namespace
}  // namespace pdserve::testing
