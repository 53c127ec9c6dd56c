// One node without its sessions: engine, both roles and a fake pump, turned by hand on one thread
// and a fake clock. Two rigs on one fabric and one sink are a prefill and a decode node.
#ifndef PDSERVE_TESTS_TESTING_RIG_H_
#define PDSERVE_TESTS_TESTING_RIG_H_

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "decode/role.h"
#include "engine/attempt.h"
#include "engine/cache/block_pool.h"
#include "engine/step_loop.h"
#include "prefill/role.h"
#include "tests/testing/fake_model.h"
#include "tests/testing/fake_pump.h"

namespace pdserve::testing {

/// What one role reported of one attempt. Breaks of the order that AttemptSink promises are
/// collected in `faults`.
struct AttemptRecord {
  bool accepted = false;
  std::optional<engine::Refusal> refusal;
  std::optional<uint32_t> first_index;
  std::vector<uint32_t> tokens;
  std::optional<engine::Ending> ending;
  std::vector<std::string> faults;

  bool ended() const { return refusal || ending; }
};

class RecordingSink final : public engine::AttemptSink {
 public:
  void Accepted(const engine::AttemptKey& key) override;
  void Refused(const engine::AttemptKey& key, const engine::Refusal& refusal) override;
  void Token(const engine::AttemptKey& key, uint32_t index, TokenId token) override;
  void Finished(const engine::AttemptKey& key, const engine::Ending& ending) override;

  AttemptRecord& operator[](uint64_t attempt) { return records_[attempt]; }
  const std::map<uint64_t, AttemptRecord>& records() const { return records_; }

 private:
  std::map<uint64_t, AttemptRecord> records_;
};

struct RigOptions {
  std::string address = "rig";
  int32_t pool_blocks = 64;
  int32_t max_context_tokens = 4096;
  int32_t max_step_tokens = 64;
  int32_t max_batch = 8;
  int32_t max_ahead_blocks = std::numeric_limits<int32_t>::max();
  int32_t max_landing_blocks = std::numeric_limits<int32_t>::max();
  bool prefix_cache = true;
};

class Rig final : public kvtransfer::PumpEvents {
 public:
  Rig(const RigOptions& options, FakeFabric* fabric, const Clock* clock);

  void OnOfferFetched(Ticket ticket) override;
  void OnOfferEnded(Ticket ticket, absl::Status status,
                    const kvtransfer::TransferStats& stats) override;
  void OnFetchEnded(Ticket ticket, absl::StatusOr<kvtransfer::CommitRecord> commit,
                    const kvtransfer::TransferStats& stats) override;

  bool Turn() { return loop.TurnOnce(); }
  /// Nothing is held: each block is free or cached.
  bool AllFree() const;

  FakeModel model;
  std::unique_ptr<engine::BlockPool> pool;
  RecordingSink sink;
  FakePump pump;
  const Clock* const clock;
  decode::Role decode;
  prefill::Role prefill;
  engine::StepLoop loop;
};

/// A ticket that names `number`; as it is on the wire.
std::string TicketBytes(uint64_t number);
Ticket TicketOf(uint64_t number);

/// `length` tokens, a function of `number`; none of them is the end token.
engine::Generation MakeGeneration(uint64_t attempt, size_t length, uint32_t max_tokens);
/// The same with the first `common` tokens of the generation numbered `like`.
engine::Generation MakeGenerationLike(uint64_t like, size_t common, engine::Generation generation);
prefill::Request PrefillOf(const engine::Generation& generation, prefill::Mode mode);
decode::Request DecodeOf(const engine::Generation& generation);

}  // namespace pdserve::testing

#endif  // PDSERVE_TESTS_TESTING_RIG_H_
