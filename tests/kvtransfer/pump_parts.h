// What the pump's tests share: a recorder of end events, a pump under test.
#ifndef PDSERVE_TESTS_KVTRANSFER_PUMP_PARTS_H_
#define PDSERVE_TESTS_KVTRANSFER_PUMP_PARTS_H_

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "gtest/gtest.h"
#include "kvtransfer/pump.h"
#include "tests/kvtransfer/blocks.h"

namespace pdserve::kvtransfer {

/// Far above what anything here takes, so that a hang is a failure and not a timeout of the suite.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

inline Ticket TicketOf(uint64_t number) {
  Ticket ticket;
  std::memcpy(ticket.value.data(), &number, sizeof number);
  return ticket;
}

/// Keeps every end event; a second one for a ticket fails the test.
class EndRecorder final : public PumpEvents {
 public:
  struct Fetched {
    absl::StatusOr<CommitRecord> commit = absl::UnknownError("none");
    TransferStats stats;
  };
  struct Offered {
    absl::Status status;
    TransferStats stats;
  };

  void OnOfferFetched(Ticket ticket) override {
    MutexLock lock(&mutex_);
    EXPECT_TRUE(fetched_.insert(ticket).second) << "an offer was fetched twice";
    EXPECT_FALSE(offers_.contains(ticket)) << "an offer was fetched after its end";
  }
  void OnOfferEnded(Ticket ticket, absl::Status status, const TransferStats& stats) override {
    MutexLock lock(&mutex_);
    EXPECT_TRUE(offers_.emplace(ticket, Offered{status, stats}).second) << "an offer ended twice";
    ended_.NotifyAll();
  }
  void OnFetchEnded(Ticket ticket, absl::StatusOr<CommitRecord> commit,
                    const TransferStats& stats) override {
    MutexLock lock(&mutex_);
    EXPECT_TRUE(fetches_.emplace(ticket, Fetched{std::move(commit), stats}).second)
        << "a fetch ended twice";
    ended_.NotifyAll();
  }

  Offered WaitOffer(Ticket ticket) { return Wait(offers_, ticket); }
  Fetched WaitFetch(Ticket ticket) { return Wait(fetches_, ticket); }
  bool offer_ended(Ticket ticket) {
    MutexLock lock(&mutex_);
    return offers_.contains(ticket);
  }
  bool fetch_ended(Ticket ticket) {
    MutexLock lock(&mutex_);
    return fetches_.contains(ticket);
  }
  /// Forgets what has ended: long tests would only measure this map.
  void Clear() {
    MutexLock lock(&mutex_);
    offers_.clear();
    fetches_.clear();
  }

 private:
  template <typename T>
  T Wait(std::map<Ticket, T>& ended, Ticket ticket) {
    MutexLock lock(&mutex_);
    const absl::Time until = absl::Now() + kPatience;
    while (!ended.contains(ticket)) {
      if (absl::Now() < until) {
        ended_.WaitFor(mutex_, until - absl::Now());
        continue;
      }
      ADD_FAILURE() << "a hand-over did not end";
      return T{};
    }
    return ended.at(ticket);
  }

  Mutex mutex_;
  CondVar ended_;
  std::set<Ticket> fetched_ ABSL_GUARDED_BY(mutex_);
  std::map<Ticket, Offered> offers_;
  std::map<Ticket, Fetched> fetches_;
};

inline PumpOptions TestOptions(const std::string& transport, uint64_t incarnation) {
  PumpOptions options;
  options.transport = transport;
  options.node_id = "node" + std::to_string(incarnation);
  options.incarnation = Incarnation{incarnation};
  options.fingerprint.value.fill(7);
  options.block_bytes = kBlockBytes;
  options.block_tokens = kBlockTokens;
  options.piece_bytes = 4 * kBlockBytes;
  options.heartbeat_interval = absl::Milliseconds(50);
  options.peer_timeout = absl::Seconds(20);  // a busy machine is no dead peer
  return options;
}

/// A pump and its events.
struct Node {
  explicit Node(const PumpOptions& pump_options, const Clock* clock = &SystemTime())
      : options(pump_options) {
    auto started = Pump::Start(options, &events, clock);
    EXPECT_TRUE(started.ok()) << started.status();
    if (started.ok()) pump = *std::move(started);
  }
  static const SystemClock& SystemTime() {
    static const SystemClock clock;
    return clock;
  }

  PumpOptions options;
  EndRecorder events;
  std::unique_ptr<Pump> pump;
};

inline absl::Time Soon() { return absl::Now() + kPatience; }

inline FetchSpec FetchFrom(const Node& peer, Ticket ticket, const Blocks& to) {
  return {ticket, peer.pump->address(), peer.options.incarnation, to.spans(), Soon()};
}

inline CommitRecord RecordFor(uint32_t num_blocks) {
  CommitRecord record;
  record.num_tokens = num_blocks == 0 ? 0 : num_blocks * kBlockTokens - 3;
  record.first_token = TokenId{12345};
  record.sampler_state = std::string("state\0with zero", 15);
  record.queue_time = absl::Milliseconds(7);
  record.prefill_time = absl::Microseconds(1234567);
  return record;
}

}  // namespace pdserve::kvtransfer

#endif  // PDSERVE_TESTS_KVTRANSFER_PUMP_PARTS_H_
