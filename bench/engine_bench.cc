// Speed of the engine alone: decode at several batch sizes and contexts, and prefill at several
// lengths, through Model::Forward, beside what the machine could do, with a hash of the results:
// two runs with equal hashes computed the same.
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
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "bench/peak.h"
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
ABSL_FLAG(std::vector<std::string>, works,
          std::vector<std::string>({"decode:1", "decode:1:2048", "decode:8", "decode:32",
                                    "prefill:512", "prefill:2048"}),
          "what to measure: decode:SEQUENCES[:CONTEXT] or prefill:TOKENS, with commas between");

namespace pdserve::engine {
namespace {

double Seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

constexpr uint64_t kHashStart = 0xcbf29ce484222325;

// FNV-1a.
void AddToHash(const void* data, size_t size_bytes, uint64_t& hash) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < size_bytes; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
}

// What one token costs: weights read, and multiplications with additions, in all and by the output
// matrix, which a prefill needs for the last token of a batch only.
struct Work {
  double bytes = 0;
  double operations = 0;
  double head_operations = 0;
};

Work WorkOf(const std::string& path) {
  Work work;
  const auto file = MappedFile::Open(path);
  if (!file.ok()) return work;
  const auto gguf = Gguf::Parse((*file)->bytes());
  if (!gguf.ok()) return work;
  Work embedding;
  for (const auto& tensor : gguf->tensors()) {
    const Work one{static_cast<double>(tensor.bytes.size()),
                   2.0 * static_cast<double>(tensor.cols() * tensor.rows())};
    work.bytes += one.bytes;
    work.operations += one.operations;
    if (tensor.name == "token_embd.weight") embedding = one;
    if (tensor.name == "output.weight") work.head_operations = one.operations;
  }
  if (work.head_operations == 0) {
    work.head_operations = embedding.operations;  // one matrix serves as both
  } else {
    work.bytes -= embedding.bytes;  // single rows of it are looked up
    work.operations -= embedding.operations;
  }
  return work;
}

// What the results stand beside.
struct Limits {
  Work work;             // of one token
  double read_rate = 0;  // bytes per second
  double vnni_rate = 0;  // operations per second
};

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
    team.Run(kBytes / 64, 1 << 16, [&](int32_t thread, Share share) {
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

// Rate of the whole run, as other engines' benchmarks count, and the median step, where other work
// on the machine counts less.
void MeasureDecode(Model& model, int32_t sequences, int32_t context, const Limits& limits) {
  const int32_t steps = absl::GetFlag(FLAGS_decode_steps);
  const int32_t chunk = absl::GetFlag(FLAGS_chunk);
  Load load(model, sequences, context + steps + 4);
  uint64_t hash = kHashStart;
  for (int32_t at = 0; at < context; at += chunk / sequences) {
    load.Step(std::min(chunk / sequences, context - at), hash);
  }
  for (int i = 0; i < 4; ++i) load.Step(1, hash);
  std::vector<double> times(steps);
  double sum = 0;
  for (double& time : times) {
    const double start = Seconds();
    load.Step(1, hash);
    time = Seconds() - start;
    sum += time;
  }
  std::sort(times.begin(), times.end());
  const double each = times[steps / 2];
  const CacheLayout& layout = model.card().cache_layout;
  const double cache = static_cast<double>(layout.block_bytes()) / layout.block_tokens *
                       (context + steps / 2) * sequences;
  std::printf(
      "decode  batch %3d at %4d: %8.1f tok/s (whole run %.1f), median step %7.2f ms (best %.2f), "
      "reads %5.1f of %5.1f GB/s, %7.1f of %7.1f GOP/s, hash %016lx\n",
      sequences, context, sequences / each, sequences * steps / sum, each * 1e3, times[0] * 1e3,
      (limits.work.bytes + cache) / each / 1e9, limits.read_rate / 1e9,
      limits.work.operations * sequences / each / 1e9, limits.vnni_rate / 1e9,
      static_cast<unsigned long>(hash));
}

void MeasurePrefill(Model& model, int32_t tokens, const Limits& limits) {
  const int32_t chunk = absl::GetFlag(FLAGS_chunk);
  uint64_t hash = kHashStart;
  Load warm(model, 1, chunk);
  uint64_t ignored = 0;
  warm.Step(chunk, ignored);
  std::vector<double> times(3);
  for (double& time : times) {
    hash = kHashStart;
    Load load(model, 1, tokens);
    const double start = Seconds();
    for (int32_t at = 0; at < tokens; at += chunk) load.Step(std::min(chunk, tokens - at), hash);
    time = Seconds() - start;
  }
  std::sort(times.begin(), times.end());
  const double seconds = times[1];
  const double operations = (limits.work.operations - limits.work.head_operations) * tokens +
                            limits.work.head_operations * ((tokens + chunk - 1) / chunk);
  std::printf(
      "prefill %5d           : %8.1f tok/s (best %.1f), %7.1f of %7.1f GOP/s, hash %016lx\n",
      tokens, tokens / seconds, tokens / times[0], operations / seconds / 1e9,
      limits.vnni_rate / 1e9, static_cast<unsigned long>(hash));
}

// One item of --works; false where it is none.
bool Measure(Model& model, const std::string& work, const Limits& limits) {
  const std::vector<std::string> parts = absl::StrSplit(work, ':');
  std::vector<int32_t> numbers;
  for (size_t i = 1; i < parts.size(); ++i) {
    int32_t number = 0;
    if (!absl::SimpleAtoi(parts[i], &number) || number < 1) return false;
    numbers.push_back(number);
  }
  if (parts[0] == "prefill" && numbers.size() == 1) {
    MeasurePrefill(model, numbers[0], limits);
    return true;
  }
  const bool decode = parts[0] == "decode" && (numbers.size() == 1 || numbers.size() == 2);
  if (!decode || numbers[0] > absl::GetFlag(FLAGS_chunk)) return false;
  MeasureDecode(model, numbers[0], numbers.size() == 2 ? numbers[1] : 0, limits);
  return true;
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
  const Limits limits{WorkOf(options.path), MeasureReadRate(*team), MeasureVnniPeak(*team)};
  for (const std::string& work : absl::GetFlag(FLAGS_works)) {
    if (Measure(**model, work, limits)) continue;
    std::fprintf(stderr, "--works: cannot measure '%s'\n", work.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace pdserve::engine

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return pdserve::engine::Run();
}
