#include "tests/testing/rig.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace pdserve::testing {
namespace {

std::unique_ptr<engine::BlockPool> MakePool(const engine::Model& model, const RigOptions& options) {
  const engine::CacheLayout& layout = model.card().cache_layout;
  const size_t bytes = layout.block_bytes();
  auto pool = engine::BlockPool::Create(bytes, bytes * static_cast<size_t>(options.pool_blocks),
                                        options.prefix_cache ? layout.block_tokens : 0);
  PD_CHECK(pool.ok());
  return *std::move(pool);
}

engine::GenerationLimits Limits(const RigOptions& options) {
  return {FakeModel::kVocab, options.max_context_tokens, options.pool_blocks * 32};
}

}  // namespace

void RecordingSink::Accepted(const engine::AttemptKey& key) {
  AttemptRecord& record = records_[key.attempt.value];
  if (record.accepted || record.ended()) record.faults.push_back("accepted late");
  record.accepted = true;
}

void RecordingSink::Refused(const engine::AttemptKey& key, const engine::Refusal& refusal) {
  AttemptRecord& record = records_[key.attempt.value];
  if (record.accepted || record.ended()) record.faults.push_back("refused late");
  record.refusal = refusal;
}

void RecordingSink::Token(const engine::AttemptKey& key, uint32_t index, TokenId token) {
  AttemptRecord& record = records_[key.attempt.value];
  if (!record.first_index) record.first_index = index;
  if (!record.accepted || record.ended()) record.faults.push_back("token out of place");
  if (index != *record.first_index + record.tokens.size()) {
    record.faults.push_back(absl::StrCat("token index ", index));
  }
  record.tokens.push_back(token.value);
}

void RecordingSink::Finished(const engine::AttemptKey& key, const engine::Ending& ending) {
  AttemptRecord& record = records_[key.attempt.value];
  if (!record.accepted || record.ended()) record.faults.push_back("finished out of place");
  record.ending = ending;
}

Rig::Rig(const RigOptions& options, FakeFabric* fabric, const Clock* rig_clock)
    : model(options.max_context_tokens),
      pool(MakePool(model, options)),
      pump(fabric, options.address),
      clock(rig_clock),
      decode({Limits(options), model.card().end_tokens, 32, options.max_batch,
              options.max_landing_blocks},
             pool.get(), &pump, &sink),
      prefill({Limits(options), model.card().end_tokens, 32,
               [this](engine::Sequence sequence, const engine::PhaseTimes& times) {
                 decode.Adopt(std::move(sequence), times, clock->Now());
               },
               options.max_ahead_blocks},
              pool.get(), &pump, &sink),
      loop({.max_step_tokens = options.max_step_tokens}, &model, pool.get(), {&decode, &prefill},
           clock) {
  pump.set_events(this);
}

void Rig::OnOfferFetched(Ticket ticket) { prefill.OnOfferFetched(ticket); }

void Rig::OnOfferEnded(Ticket ticket, absl::Status status, const kvtransfer::TransferStats& stats) {
  prefill.OnOfferEnded(ticket, status, stats, clock->Now());
}

void Rig::OnFetchEnded(Ticket ticket, absl::StatusOr<kvtransfer::CommitRecord> commit,
                       const kvtransfer::TransferStats& stats) {
  decode.OnFetchEnded(ticket, commit, stats, clock->Now());
}

bool Rig::AllFree() const {
  return pool->CheckIntegrity() && pool->counts().available() == pool->capacity() &&
         decode.load() == 0 && prefill.load() == 0;
}

std::string TicketBytes(uint64_t number) {
  std::string bytes(16, '\0');
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

Ticket TicketOf(uint64_t number) { return *engine::MakeTicket(TicketBytes(number)); }

engine::Generation MakeGeneration(uint64_t attempt, size_t length, uint32_t max_tokens) {
  engine::Generation generation;
  generation.key = {SessionId{1}, AttemptId{attempt}};
  for (size_t i = 0; i < length; ++i) {
    const uint64_t mixed = (attempt * 1000003 + i) * 0x9e3779b97f4a7c15;
    generation.prompt.push_back(1 + static_cast<uint32_t>((mixed >> 40) % (FakeModel::kVocab - 1)));
  }
  generation.max_tokens = max_tokens;
  generation.ignore_eos = true;
  generation.sampling.temperature = 0.0f;
  generation.sampling.seed = attempt;
  generation.deadline = absl::Minutes(10);
  return generation;
}

engine::Generation MakeGenerationLike(uint64_t like, size_t common, engine::Generation generation) {
  const size_t length = std::min(common, generation.prompt.size());
  const engine::Generation other = MakeGeneration(like, length, 1);
  std::copy(other.prompt.begin(), other.prompt.end(), generation.prompt.begin());
  return generation;
}

prefill::Request PrefillOf(const engine::Generation& generation, prefill::Mode mode) {
  return {generation, mode, TicketBytes(generation.key.attempt.value)};
}

decode::Request DecodeOf(const engine::Generation& generation) {
  return {generation, TicketBytes(generation.key.attempt.value), "rig", Incarnation{1}};
}

}  // namespace pdserve::testing
