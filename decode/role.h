// Decode attempts: wait for blocks, land the cache, decode, and give the tokens out. Owner: the
// node; the step loop's thread.
// Invariants: `waiting_`, `landing_` and `running_` are in order of arrival; a running sequence has
// all blocks of its computed tokens, or none and nothing computed (preempted); a block that the
// pump may write stays held for the transfer until the pump's event, whatever has become of its
// attempt; each attempt ends by exactly one Finished.
#ifndef PDSERVE_DECODE_ROLE_H_
#define PDSERVE_DECODE_ROLE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "decode/landing.h"
#include "decode/planner.h"
#include "engine/attempt.h"
#include "engine/attempt_table.h"
#include "engine/cache/block_pool.h"
#include "engine/generation.h"
#include "engine/planner.h"
#include "engine/sequence.h"
#include "kvtransfer/pump.h"

namespace pdserve::decode {

/// As it came in; nothing in it has been checked.
struct Request {
  engine::Generation generation;
  std::string ticket;
  std::string peer_address;
  Incarnation peer_incarnation;
};

struct RoleOptions {
  engine::GenerationLimits limits;
  std::vector<TokenId> end_tokens;  // sorted
  int32_t block_tokens = 0;
  int32_t max_batch = 0;
  /// Most blocks that landings hold together.
  int32_t max_landing_blocks = std::numeric_limits<int32_t>::max();
  /// Nobody has a row, landings hold the blocks that others wait for, and none of them ends: after
  /// this time the youngest fail. The shares of the pools keep nodes from waiting for each other;
  /// this is for what is too large for them, and for a prefill node that does not move.
  absl::Duration stall_timeout = absl::Seconds(30);
};

struct RoleStats {
  uint32_t waiting = 0;
  uint32_t transferring = 0;  // ended ones whose blocks the pump still holds included
  uint32_t decoding = 0;      // preempted ones included
  uint64_t preemptions = 0;   // since the start
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
  /// Takes over a sequence of the same node with its blocks and its first token, which has been
  /// given out. No attempt with the same key may be in progress.
  void Adopt(engine::Sequence sequence, const engine::PhaseTimes& times, absl::Time now);
  /// Reports Finished(kCancelled); false where there is no such attempt.
  bool Cancel(const engine::AttemptKey& key);
  /// Aborted: the prefill node has ended its offer, and reports itself how the attempt ended; then
  /// it is kCancelled here. Whatever else went wrong is kFailed, and another attempt may help.
  void OnFetchEnded(Ticket ticket, const absl::StatusOr<kvtransfer::CommitRecord>& commit,
                    const kvtransfer::TransferStats& stats, absl::Time now);

  void AddWork(absl::Time now, engine::Plan& plan) override;
  void OnStep(absl::Time now, std::span<const engine::StepOutput> outputs) override;
  absl::Time NextDeadline() const override;

  RoleStats stats() const;
  /// Attempts in progress and fetches not yet ended.
  size_t load() const { return attempts_.size() + strip_.num_cancelled(); }

 private:
  struct Attempt {
    enum class State { kWaiting, kLanding, kRunning };
    State state = State::kWaiting;
    uint64_t order = 0;  // of arrival
    engine::Sequence sequence;
    std::optional<Ticket> ticket;  // not of an adopted one
    LandingSource source;
    int32_t num_blocks = 0;     // of all tokens that land
    int32_t needed_blocks = 0;  // of them, those to come out of the pool's available ones
    uint64_t last_step = 0;
    absl::Time landed;
    std::optional<absl::Time> decoding_since;
    engine::PhaseTimes times;
  };

  absl::Status Admit(const Request& request, absl::Time now);
  absl::Status CheckCommit(const Attempt& attempt, const kvtransfer::CommitRecord& commit) const;
  void Run(Attempt& attempt);
  std::vector<RunningView> RunningViews(int32_t free_blocks) const;
  void CountShared(std::vector<RunningView>& views) const;
  void LookUpWaiting();
  DecodePlan MakePlan(const engine::Plan& plan);
  void Preempt(Attempt& attempt);
  void AddRow(Attempt& attempt, const Row& row, absl::Time now, engine::Plan& plan);
  void Land(size_t count);
  void BreakStall(bool has_rows, absl::Time now);
  bool EndIfFinished(Attempt& attempt, absl::Time now);
  void End(Attempt& attempt, engine::Outcome outcome, const std::string& error);

  const RoleOptions options_;
  engine::BlockPool* const pool_;
  engine::AttemptSink* const sink_;
  LandingStrip strip_;
  engine::AttemptTable<Attempt> attempts_;
  std::vector<Attempt*> waiting_;
  std::vector<Attempt*> landing_;
  std::vector<Attempt*> running_;
  std::optional<absl::Time> stalled_since_;
  uint64_t next_order_ = 0;
  uint64_t step_ = 0;
  uint64_t preemptions_ = 0;
  uint64_t generated_tokens_ = 0;
  engine::PrefixStats prefix_stats_;
};

}  // namespace pdserve::decode

#endif  // PDSERVE_DECODE_ROLE_H_
