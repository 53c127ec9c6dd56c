// Speed of the engine alone: decode at several batch sizes and prefill at several lengths through
// Model::Forward, beside what the machine could do, with a hash of the results: two runs with equal
// hashes computed the same.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "engine/gguf.h"
#include "engine/mapped_file.h"
#include "engine/model.h"
#include "engine/weights.h"

ABSL_FLAG(std::string, model, "", "the model's file");
ABSL_FLAG(std::string, isa, "auto", "kernels");
ABSL_FLAG(std::string, activations, "int8", "int8 or fp32");
ABSL_FLAG(std::string, kv_dtype, "auto", "type of the cache");
ABSL_FLAG(int32_t, threads, 0, "compute threads; 0 is one per core");
ABSL_FLAG(int32_t, decode_steps, 64, "steps of each decode measurement");
ABSL_FLAG(int32_t, chunk, 256, "rows of a prefill batch");

namespace pdserve::engine {
namespace {

double Seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// FNV-1a.
void AddToHash(const void* data, size_t size_bytes, uint64_t& hash) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < size_bytes; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
}

// What one token costs: weights read, and multiplications with additions.
struct Work {
  double bytes = 0;
  double operations = 0;
};

Work WorkOf(const std::string& path) {
  Work work;
  const auto file = MappedFile::Open(path);
  if (!file.ok()) return work;
  const auto gguf = Gguf::Parse((*file)->bytes());
  if (!gguf.ok()) return work;
  for (const GgufTensor& tensor : gguf->tensors()) {
    work.bytes += static_cast<double>(tensor.bytes.size());
    work.operations += 2.0 * static_cast<double>(tensor.cols() * tensor.rows());
  }
  return work;
}

// Bytes per second that the threads read from memory together, at best.
double MeasureReadRate(Team& team) {
  constexpr size_t kBytes = size_t{512} << 20;
  const auto memory = AlignedMemory::Create(kBytes);
  if (!memory.ok()) return 0;
  std::memset(memory->data(), 1, kBytes);
  const auto* words = reinterpret_cast<const uint64_t*>(memory->data());
  std::vector<uint64_t> sums(team.threads());
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const double start = Seconds();
    team.Run([&](int32_t thread) {
      const Share share = ShareOf(kBytes / 64, thread, team.threads());
      uint64_t lanes[8] = {};
      for (int64_t line = share.first; line < share.last; ++line) {
        for (int lane = 0; lane < 8; ++lane) lanes[lane] += words[line * 8 + lane];
      }
      for (const uint64_t lane : lanes) sums[thread] += lane;
    });
    best = std::max(best, kBytes / (Seconds() - start));
  }
  return sums[0] == 0 ? 0 : best;
}

// Sequences of equal length in a pool of their own.
class Load {
 public:
  Load(Model& model, int32_t sequences, int32_t max_tokens)
      : model_(model), layout_(model.card().cache_layout), blocks_(sequences) {
    const int32_t each = layout_.blocks_for(max_tokens);
    for (int32_t i = 0; i < sequences * each; ++i) {
      blocks_[i / each].push_back({static_cast<uint32_t>(i)});
    }
    pool_.resize(size_t(sequences) * each * layout_.block_bytes());
    logits_.resize(size_t(sequences) * model.card().vocab_size);
  }

  // The next `rows` tokens of each sequence; logits of each one's last.
  void Step(int32_t rows, uint64_t& hash) {
    Batch batch;
    for (size_t s = 0; s < blocks_.size(); ++s) {
      batch.segments.push_back({batch.num_rows(), rows, position_, blocks_[s]});
      for (int32_t i = 0; i < rows; ++i) {
        const auto seed = static_cast<uint32_t>(position_ + i) * 2654435761u + uint32_t(s) * 40503u;
        batch.tokens.push_back({(seed >> 8) % model_.card().vocab_size});
      }
      batch.logit_rows.push_back(batch.num_rows() - 1);
    }
    model_.Forward(batch, pool_.data(), logits_.data());
    position_ += rows;
    const size_t vocab = model_.card().vocab_size;
    for (size_t s = 0; s < blocks_.size(); ++s) {
      AddToHash(logits_.data() + s * vocab, 256 * sizeof(float), hash);
    }
  }

 private:
  Model& model_;
  const CacheLayout layout_;
  std::vector<std::vector<BlockId>> blocks_;
  std::vector<std::byte> pool_;
  std::vector<float> logits_;
  int32_t position_ = 0;
};

void MeasureDecode(Model& model, int32_t sequences, const Work& work, double read_rate) {
  const int32_t steps = absl::GetFlag(FLAGS_decode_steps);
  Load load(model, sequences, steps + 4);
  uint64_t hash = 0xcbf29ce484222325;
  for (int i = 0; i < 4; ++i) load.Step(1, hash);
  std::vector<double> times(steps);
  for (double& time : times) {
    const double start = Seconds();
    load.Step(1, hash);
    time = Seconds() - start;
  }
  std::sort(times.begin(), times.end());
  const double each = times[steps / 2];  // the median: other work on the machine counts less
  std::printf(
      "decode  batch %3d: %8.1f tok/s, median step %7.2f ms (best %.2f), weights at %5.1f of %5.1f "
      "GB/s, "
      "%7.1f GOP/s, hash %016lx\n",
      sequences, sequences / each, each * 1e3, times[0] * 1e3, work.bytes / each / 1e9,
      read_rate / 1e9, work.operations * sequences / each / 1e9, static_cast<unsigned long>(hash));
}

void MeasurePrefill(Model& model, int32_t tokens, const Work& work) {
  const int32_t chunk = absl::GetFlag(FLAGS_chunk);
  uint64_t hash = 0xcbf29ce484222325;
  Load warm(model, 1, chunk);
  uint64_t ignored = 0;
  warm.Step(chunk, ignored);
  Load load(model, 1, tokens);
  const double start = Seconds();
  for (int32_t at = 0; at < tokens; at += chunk) load.Step(std::min(chunk, tokens - at), hash);
  const double seconds = Seconds() - start;
  std::printf("prefill %5d     : %8.1f tok/s, %7.1f GOP/s, hash %016lx\n", tokens, tokens / seconds,
              work.operations * tokens / seconds / 1e9, static_cast<unsigned long>(hash));
}

int Run() {
  ModelOptions options;
  options.path = absl::GetFlag(FLAGS_model);
  options.isa = absl::GetFlag(FLAGS_isa);
  options.activations = absl::GetFlag(FLAGS_activations);
  options.kv_dtype = absl::GetFlag(FLAGS_kv_dtype);
  options.threads = absl::GetFlag(FLAGS_threads);
  options.max_rows = std::max(absl::GetFlag(FLAGS_chunk), 64);
  const double start = Seconds();
  const auto model = LoadModel(options);
  if (!model.ok()) {
    std::fprintf(stderr, "%s\n", model.status().ToString().c_str());
    return 1;
  }
  const auto team = Team::Create(options.threads);
  std::printf("%s, %s activations, %d threads, loaded in %.2f s\n", (*model)->card().name.c_str(),
              options.activations.c_str(), team->threads(), Seconds() - start);
  const Work work = WorkOf(options.path);
  const double read_rate = MeasureReadRate(*team);
  for (const int32_t sequences : {1, 8, 32}) {
    MeasureDecode(**model, sequences, work, read_rate);
  }
  for (const int32_t tokens : {512, 2048}) MeasurePrefill(**model, tokens, work);
  return 0;
}

}  // namespace
}  // namespace pdserve::engine

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return pdserve::engine::Run();
}
