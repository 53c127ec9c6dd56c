// Products of a small model's shapes, every kernel table on one thread: achieved GOP/s (two
// operations per weight and row) and GB/s (packed weights read once). Each line carries a hash of
// its results, so that speed and correctness are seen together.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/ops.h"

namespace pdserve::engine {
namespace {

struct Shape {
  int32_t rows;
  int32_t cols;
};
constexpr Shape kShapes[] = {{576, 576}, {1536, 576}, {576, 1536}, {49152, 576}};
constexpr int32_t kBatches[] = {1, 8, 32, 256};

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;

Memory Allocate(size_t bytes) {
  return Memory(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
}

/// A random matrix with plausible scales.
Memory MakeMatrix(Packing packing, Shape shape, PackedMatrix& matrix) {
  std::mt19937 random(1);
  const size_t blocks = shape.cols / kBlockCols;
  std::vector<uint8_t> q(size_t(kTileRows) * shape.cols);
  std::vector<float> scale(kTileRows * blocks, 0.0078125f);
  const std::vector<float> minimum(kTileRows * blocks, -0.0625f);
  Memory memory = Allocate(PackedBytes(packing, shape.rows, shape.cols));
  matrix = {packing, shape.rows, shape.cols, memory.get()};
  for (int32_t tile = 0; tile < matrix.tiles(); ++tile) {
    for (uint8_t& value : q) value = random() & (packing == Packing::kU4 ? 15 : 255);
    PackQuantisedTile(packing, shape.cols, {q.data(), scale.data(), minimum.data()},
                      matrix.data + tile * PackedTileBytes(packing, shape.cols));
  }
  return memory;
}

uint64_t HashOf(const std::vector<float>& values) {
  uint64_t hash = 1469598103934665603ull;
  for (const float value : values) {
    uint32_t bits;
    static_assert(sizeof(bits) == sizeof(value));
    std::memcpy(&bits, &value, sizeof(bits));
    hash = (hash ^ bits) * 1099511628211ull;
  }
  return hash;
}

void Multiply(benchmark::State& state, const Ops* ops, Packing packing, Shape shape) {
  const int32_t rows = static_cast<int32_t>(state.range(0));
  PackedMatrix w;
  const Memory memory = MakeMatrix(packing, shape, w);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> values(size_t(rows) * shape.cols);
  for (float& value : values) value = normal(random);
  const size_t blocks = size_t(rows + kPanelRows - 1) / kPanelRows * kPanelRows * shape.cols / 32;
  std::vector<int8_t> q(blocks * 32);
  std::vector<int8_t> rest(blocks * 32);
  std::vector<uint8_t> fine(blocks);
  std::vector<float> scale(blocks);
  std::vector<float> sum(blocks);
  const QuantisedOut all{q.data(), rest.data(), fine.data(), scale.data(), sum.data()};
  for (int32_t row = 0; row < rows; ++row) {
    ops->quantise(&values[size_t(row) * shape.cols], shape.cols, 0, all.From(shape.cols, row, 0));
  }
  const Activations x{rows,
                      shape.cols,
                      values.data(),
                      false,
                      {q.data(), rest.data(), fine.data(), scale.data(), sum.data()}};
  std::vector<float> out(size_t(rows) * shape.rows);
  for (auto _ : state) {
    ops->matmul(w, x, {0, w.tiles()}, {out.data(), shape.rows, false});
    benchmark::ClobberMemory();
  }
  using benchmark::Counter;
  const double operations = 2.0 * rows * shape.rows * shape.cols * state.iterations();
  const double bytes =
      static_cast<double>(PackedBytes(packing, shape.rows, shape.cols)) * state.iterations();
  state.counters["GOP/s"] = Counter(operations / 1e9, Counter::kIsRate);
  state.counters["GB/s"] = Counter(bytes / 1e9, Counter::kIsRate);
  char hash[17];
  std::snprintf(hash, sizeof(hash), "%016llx", static_cast<unsigned long long>(HashOf(out)));
  state.SetLabel(hash);
}

/// Attention of all layers (range 2) and 3 kv heads of 64 dims, bf16, groups of 3: one token (range
/// 0) at the end of range 1, or a chunk of a prompt. GB/s: keys and values read once.
void Attend(benchmark::State& state, const Ops* ops) {
  const int32_t rows = static_cast<int32_t>(state.range(0));
  const int32_t tokens = static_cast<int32_t>(state.range(1));
  const CacheLayout layout{static_cast<int32_t>(state.range(2)), 3, 64, 32, KvDtype::kBf16};
  const size_t pool_bytes = layout.block_bytes() * layout.blocks_for(tokens);
  const Memory pool = Allocate(pool_bytes);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> some(4096);
  for (float& value : some) value = normal(random);
  for (size_t at = 0; at < pool_bytes; at += some.size() * 2) {
    ops->store_kv(some.data(), static_cast<int32_t>(some.size()), KvDtype::kBf16, pool.get() + at);
  }
  std::vector<const std::byte*> blocks;
  for (size_t at = 0; at < pool_bytes; at += layout.block_bytes())
    blocks.push_back(&pool.get()[at]);
  const int32_t group = 3;
  std::vector<float> query(size_t(rows) * group * 64);
  std::vector<float> out(query.size());
  for (float& value : query) value = normal(random);
  AttentionArgs args{&layout, 0, 0, group, rows, tokens - rows, query.data(), group * 64, 0.125f};
  args.blocks = blocks.data();
  args.out = out.data();
  args.out_stride = group * 64;
  for (auto _ : state) {
    for (args.layer = 0; args.layer < layout.num_layers; ++args.layer) {
      for (args.kv_head = 0; args.kv_head < 3; ++args.kv_head) ops->attention(args);
    }
    benchmark::ClobberMemory();
  }
  using benchmark::Counter;
  const double seen = rows * (tokens - (rows - 1) / 2.0) * layout.num_layers * 3;
  state.counters["GFLOP/s"] =
      Counter(seen * group * 64 * 4 * state.iterations() / 1e9, Counter::kIsRate);
  state.counters["GB/s"] =
      Counter(static_cast<double>(pool_bytes) * state.iterations() / 1e9, Counter::kIsRate);
  char hash[17];
  std::snprintf(hash, sizeof(hash), "%016llx", static_cast<unsigned long long>(HashOf(out)));
  state.SetLabel(hash);
}

void RegisterAll() {
  for (const OpsVariant& variant : AllOps()) {
    if (variant.ops == nullptr) continue;
    const std::string name(variant.name);
    for (const Packing packing : {Packing::kU4, Packing::kU8}) {
      for (const Shape shape : kShapes) {
        const std::string full = name + (packing == Packing::kU4 ? "/u4/" : "/u8/") +
                                 std::to_string(shape.rows) + "x" + std::to_string(shape.cols);
        auto* bench =
            benchmark::RegisterBenchmark(full.c_str(), Multiply, variant.ops, packing, shape);
        for (const int32_t rows : kBatches) bench->Arg(rows);
      }
    }
    benchmark::RegisterBenchmark((name + "/attention").c_str(), Attend, variant.ops)
        ->Args({1, 2048, 1})
        ->Args({1, 2048, 30})
        ->Args({256, 256, 1})
        ->Args({256, 2048, 1});
  }
}

}  // namespace
}  // namespace pdserve::engine

int main(int argc, char** argv) {
  pdserve::engine::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
