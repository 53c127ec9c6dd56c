// Prefill attempts, from request to first token and on to the acknowledged hand-over (or, in whole
// mode, to the decode role of the same node). Owner: the node; the step loop's thread.
// Invariants: an attempt waits without blocks or has all it needs; a block given to the pump stays
// held for the transfer until the pump's event, whatever has become of its attempt; each accepted
// attempt ends by exactly one Finished or by one call of `to_decode`.
#ifndef PDSERVE_PREFILL_ROLE_H_
#define PDSERVE_PREFILL_ROLE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/attempt.h"
#include "engine/attempt_table.h"
#include "engine/cache/block_pool.h"
#include "engine/generation.h"
#include "engine/planner.h"
#include "engine/sequence.h"
#include "kvtransfer/pump.h"
#include "prefill/planner.h"
#include "prefill/shipper.h"

namespace pdserve::prefill {

enum class Mode { kUnknown, kHandOver, kWhole };

/// As it came in; nothing in it has been checked.
struct Request {
  engine::Generation generation;
  Mode mode = Mode::kUnknown;
  std::string ticket;  // kHandOver
};

struct RoleOptions {
  engine::GenerationLimits limits;
  std::vector<TokenId> end_tokens;  // sorted
  int32_t block_tokens = 0;
  /// Takes a sequence with its blocks and first token; not set: whole mode is refused.
  std::function<void(engine::Sequence, const engine::PhaseTimes&)> to_decode;
  /// Most blocks of attempts whose decode node has not asked for their cache yet.
  int32_t max_ahead_blocks = std::numeric_limits<int32_t>::max();
};

struct RoleStats {
  uint32_t waiting = 0;
  uint32_t prefilling = 0;
  uint32_t transferring = 0;  // ended ones whose blocks the pump still holds included
  uint64_t queued_tokens = 0;
  uint64_t prefilled_tokens = 0;  // since the start
  uint64_t generated_tokens = 0;
  engine::PrefixStats prefix;
};

class Role final : public engine::StepClient {
 public:
  /// `pool`, `pump` and `sink` outlive the role.
  Role(RoleOptions options, engine::BlockPool* pool, kvtransfer::Pump* pump,
       engine::AttemptSink* sink);

  /// Reports Accepted or Refused. No attempt with the same key may be in progress.
  void Begin(const Request& request, absl::Time now);
  /// Reports Finished(kCancelled); false where there is no such attempt.
  bool Cancel(const engine::AttemptKey& key);
  /// The decode node has room for the attempt's cache.
  void OnOfferFetched(Ticket ticket);
  void OnOfferEnded(Ticket ticket, const absl::Status& status,
                    const kvtransfer::TransferStats& stats, absl::Time now);

  void AddWork(absl::Time now, engine::Plan& plan) override;
  void OnStep(absl::Time now, std::span<const engine::StepOutput> outputs) override;
  absl::Time NextDeadline() const override { return attempts_.NextDeadline(); }

  RoleStats stats() const;
  /// Attempts in progress and shipments not yet ended.
  size_t load() const { return attempts_.size() + shipper_.num_withdrawn(); }

 private:
  struct Attempt {
    enum class State { kWaiting, kPrefilling, kTransferring };
    State state = State::kWaiting;
    engine::Sequence sequence;
    std::optional<Ticket> ticket;  // kHandOver
    int32_t num_blocks = 0;        // of all its tokens
    int32_t needed_blocks = 0;     // of them, those to come out of the pool's available ones
    int32_t found_tokens = 0;      // in the prefix cache when it was last looked up
    bool is_ahead = false;         // its decode node has not asked for it yet
    int32_t ahead_blocks = 0;      // counted in ahead_blocks_
    absl::Time started;
    absl::Time prefilled;
    engine::PhaseTimes times;
  };

  absl::Status Check(const Request& request, const engine::Sequence& sequence) const;
  absl::Status Admit(const Request& request, std::unique_ptr<Attempt> attempt);
  engine::Finish FinishOf(const engine::Sequence& sequence) const {
    return CheckFinish(sequence, {options_.end_tokens, options_.limits.max_context_tokens});
  }
  std::vector<PromptView> Views();
  void LookUp(Attempt& attempt);
  void CatchUp(Attempt& attempt);
  void GiveBlocks(std::span<const size_t> admitted);
  void OnFirstToken(Attempt& attempt, TokenId token, absl::Time now);
  void HandOver(Attempt& attempt, Ticket ticket, TokenId token);
  void MoveToDecode(Attempt& attempt);
  void End(Attempt& attempt, engine::Outcome outcome, const std::string& error);
  void Forget(Attempt& attempt);
  void LeaveAhead(Attempt& attempt);

  const RoleOptions options_;
  engine::BlockPool* const pool_;
  engine::AttemptSink* const sink_;
  Shipper shipper_;
  engine::AttemptTable<Attempt> attempts_;
  std::vector<Attempt*> queue_;  // waiting and prefilling, in order of arrival
  int32_t ahead_blocks_ = 0;     // held by those that are ahead
  uint64_t prefilled_tokens_ = 0;
  uint64_t generated_tokens_ = 0;
  engine::PrefixStats prefix_stats_;
};

}  // namespace pdserve::prefill

#endif  // PDSERVE_PREFILL_ROLE_H_
