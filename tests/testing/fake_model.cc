#include "tests/testing/fake_model.h"

#include <cstring>

namespace pdserve::testing {
namespace {

constexpr uint64_t kChainStart = 0x243f6a8885a308d3;

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t Extend(uint64_t chain, uint32_t token) { return Mix(chain + token + 1); }

void Logits(uint64_t chain, float* logits) {
  for (uint32_t v = 0; v < FakeModel::kVocab; ++v) {
    logits[v] = static_cast<float>(Extend(chain, v) >> 40) * 0x1p-22f;  // [0, 4)
  }
}

struct Entry {
  uint64_t chain;
  uint32_t token;
  uint32_t position;

  friend bool operator==(const Entry&, const Entry&) = default;
};

/// Offset in the pool of the entry of `position` in part `part` of [layer][K|V].
size_t Offset(const engine::CacheLayout& layout, std::span<const BlockId> blocks, int32_t position,
              int32_t part) {
  const int32_t layer = part / 2;
  const size_t in_block = part % 2 == 0 ? layout.k_offset(layer, 0) : layout.v_offset(layer, 0);
  return blocks[position / layout.block_tokens].value * layout.block_bytes() + in_block +
         size_t(position % layout.block_tokens) * sizeof(Entry);
}

}  // namespace

FakeModel::FakeModel(int32_t max_context_tokens) {
  card_.name = "fake";
  card_.architecture = "hash";
  card_.vocab_size = kVocab;
  card_.max_context_tokens = max_context_tokens;
  card_.end_tokens = {TokenId{kEnd}};
  card_.cache_layout = {.num_layers = 2,
                        .num_kv_heads = 1,
                        .head_dim = 4,
                        .block_tokens = 32,
                        .dtype = engine::KvDtype::kFp32};
  card_.fingerprint.value.fill(7);
  card_.text_spec = R"({"fake": true})";
}

uint64_t FakeModel::ReadChain(const engine::BatchSegment& segment, const std::byte* pool) {
  uint64_t chain = kChainStart;
  for (int32_t position = 0; position < segment.first_position; ++position) {
    Entry first{};
    for (int32_t part = 0; part < 2 * card_.cache_layout.num_layers; ++part) {
      Entry entry{};
      std::memcpy(&entry, pool + Offset(card_.cache_layout, segment.blocks, position, part),
                  sizeof(entry));
      if (part == 0) {
        first = entry;
        chain = Extend(chain, entry.token);
      }
      const bool right = entry == first && entry.chain == chain &&
                         entry.position == static_cast<uint32_t>(position);
      if (!right) {
        ++corruptions_;
        chain = Mix(chain ^ 0xbad);
      }
    }
  }
  return chain;
}

void FakeModel::Forward(const engine::Batch& batch, std::byte* pool, float* logits) {
  if (on_forward) on_forward(batch);
  ++forwards_;
  size_t wanted = 0;
  for (const engine::BatchSegment& segment : batch.segments) {
    uint64_t chain = ReadChain(segment, pool);
    for (int32_t i = 0; i < segment.num_rows; ++i) {
      const int32_t row = segment.first_row + i;
      const int32_t position = segment.first_position + i;
      chain = Extend(chain, batch.tokens[row].value);
      const Entry entry{chain, batch.tokens[row].value, static_cast<uint32_t>(position)};
      for (int32_t part = 0; part < 2 * card_.cache_layout.num_layers; ++part) {
        std::memcpy(pool + Offset(card_.cache_layout, segment.blocks, position, part), &entry,
                    sizeof(entry));
      }
      if (wanted < batch.logit_rows.size() && batch.logit_rows[wanted] == row) {
        Logits(chain, logits + wanted++ * kVocab);
      }
    }
  }
}

std::vector<uint32_t> FakeModel::Continue(const engine::Generation& generation,
                                          int32_t max_context_tokens) {
  uint64_t chain = kChainStart;
  for (uint32_t token : generation.prompt) chain = Extend(chain, token);
  std::vector<uint32_t> output = generation.emitted;
  for (uint32_t token : output) chain = Extend(chain, token);
  engine::SamplerScratch scratch;
  std::vector<float> logits(kVocab);
  const auto known = [&] { return generation.prompt.size() + output.size(); };
  while (output.size() < generation.max_tokens &&
         known() < static_cast<size_t>(max_context_tokens)) {
    Logits(chain, logits.data());
    output.push_back(engine::Sample(logits, generation.sampling, output.size(), scratch).value);
    if (output.back() == kEnd && !generation.ignore_eos) break;
    chain = Extend(chain, output.back());
  }
  return output;
}

}  // namespace pdserve::testing
