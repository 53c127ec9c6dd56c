// Where attempts come in and news goes out: checks what concerns the node as a whole (draining,
// the number of attempts, keys in use), passes on to the roles, and sends what a turn has brought
// when it is over. The last client of the step loop, whose thread all calls come from, but for
// those marked. Invariant: `live_` has exactly the attempts that were accepted and have not ended.
#ifndef PDSERVE_NODE_DESK_H_
#define PDSERVE_NODE_DESK_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "decode/role.h"
#include "engine/attempt.h"
#include "engine/cache/block_pool.h"
#include "engine/planner.h"
#include "kvtransfer/pump.h"
#include "node/outbox.h"
#include "node/session_messages.h"
#include "prefill/role.h"

namespace pdserve::node {

struct DeskOptions {
  std::string node_id;
  int32_t max_attempts = 1024;
  absl::Duration load_interval = absl::Milliseconds(50);
};

/// All outlive the desk's use; a role that the node does not take is nullptr.
struct DeskParts {
  engine::BlockPool* pool = nullptr;
  prefill::Role* prefill = nullptr;
  decode::Role* decode = nullptr;
  SessionPort* port = nullptr;
  Metrics* metrics = nullptr;
  const Clock* clock = nullptr;
};

class Desk final : public engine::StepClient, public engine::AttemptSink {
 public:
  explicit Desk(DeskOptions options) : options_(std::move(options)) {}
  /// Once, before the loop starts: the roles report to the desk, so it is made before them.
  void Connect(const DeskParts& parts) { parts_ = parts; }

  void Opened(SessionId session);
  void Begin(const prefill::Request& request);
  void Begin(const decode::Request& request);
  /// Answered by one Finished(kCancelled), also where there is no such attempt (any more).
  void Cancel(const engine::AttemptKey& key);
  void Lost(SessionId session);
  void OnOfferFetched(Ticket ticket);
  void OnOfferEnded(Ticket ticket, const absl::Status& status,
                    const kvtransfer::TransferStats& stats);
  void OnFetchEnded(Ticket ticket, const absl::StatusOr<kvtransfer::CommitRecord>& commit,
                    const kvtransfer::TransferStats& stats);
  /// From here on every new attempt is refused.
  void Drain();
  void CancelAll();

  /// Any thread. True: draining, and no attempt or hand-over is left; false after `timeout`.
  bool WaitUntilDrained(absl::Duration timeout);

  void Accepted(const engine::AttemptKey& key) override;
  void Refused(const engine::AttemptKey& key, const engine::Refusal& refusal) override;
  void Token(const engine::AttemptKey& key, uint32_t index, TokenId token) override;
  void Finished(const engine::AttemptKey& key, const engine::Ending& ending) override;

  void AddWork(absl::Time now, engine::Plan& plan) override;
  void OnStep(absl::Time now, std::span<const engine::StepOutput> outputs) override;
  absl::Time NextDeadline() const override;

 private:
  bool Admits(const engine::AttemptKey& key, bool has_role);
  size_t NumHeld() const;
  LoadFigures Figures() const;
  void Publish(absl::Time now);
  void SetGauges(const LoadFigures& figures, absl::Time now);
  void CountPrefixes(std::string_view role, const engine::PrefixStats& now,
                     engine::PrefixStats& counted);
  void CheckPoolWhenIdle(absl::Time now);

  const DeskOptions options_;
  DeskParts parts_;
  Outbox outbox_;
  absl::btree_set<engine::AttemptKey> live_;
  uint64_t transfer_bytes_ = 0;
  engine::PrefixStats prefill_counted_;  // what the counters have
  engine::PrefixStats decode_counted_;
  LoadFigures published_;
  absl::Time next_publish_ = absl::InfinitePast();
  absl::Time next_gauges_ = absl::InfinitePast();
  absl::Time next_pool_check_ = absl::InfinitePast();
  absl::Time next_silence_ = absl::InfiniteFuture();
  bool unpublished_ = false;
  bool pool_unchecked_ = false;
  bool draining_ = false;

  Mutex mutex_;
  CondVar changed_;
  bool drained_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pdserve::node

#endif  // PDSERVE_NODE_DESK_H_
