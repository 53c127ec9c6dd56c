// The llama architecture: RMS norms, grouped-query attention with rotation of neighbouring pairs (a
// Hugging Face checkpoint's halves are interleaved as its weights are packed), a gated feed-forward
// net (SiLU), tied or separate output head. Per layer:
//   x += Wo * attention(rotate(Wq * n1(x)), rotate(Wk * n1(x)), Wv * n1(x))
//   x += Wdown * (silu(Wgate * n2(x)) * Wup * n2(x))
#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/checkpoint/rotation.h"
#include "engine/forward_pass.h"
#include "engine/model.h"
#include "engine/model_source.h"
#include "engine/turn.h"
#include "engine/weights.h"

namespace pdserve::engine::llama {
namespace {

template <typename... Parts>
absl::Status Fault(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

constexpr int32_t kUnitTiles = kBlockCols / kTileRows;
constexpr int32_t kUnitPiece = 4;  // of gate units: taken at a time

struct Dimensions {
  int32_t layers = 0;
  int32_t embedding = 0;  // width of the residual stream
  int32_t feed_forward = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t context_tokens = 0;
  float epsilon = 0;
  std::vector<double> rotation;  // radians per position, [head_dim / 2]

  int32_t query_cols() const { return heads * head_dim; }
  int32_t kv_cols() const { return kv_heads * head_dim; }
};

// What would change the results, and is not computed here.
absl::Status RefuseUnknown(const Parameters& parameters) {
  for (const char* key : {"rope.scale_linear", "logit_scale", "embedding_scale", "residual_scale",
                          "attention.scale", "attention.sliding_window", "attention.clamp_kqv"}) {
    if (parameters.Has(key)) return Fault(parameters.NameOf(key), " is not supported");
  }
  ASSIGN_OR_RETURN(const int64_t experts, parameters.Integer("expert_count", 0));
  if (experts != 0) return Fault(parameters.NameOf("expert_count"), " is not supported");
  ASSIGN_OR_RETURN(const bool causal, parameters.Boolean("attention.causal", true));
  if (!causal) return Fault("attention that is not causal is not supported");
  ASSIGN_OR_RETURN(const std::string_view activation, parameters.String("activation", "silu"));
  if (activation == "silu") return absl::OkStatus();
  return Fault("the activation '", Printable(activation), "' is not supported");
}

absl::Status ReadHeads(const Parameters& parameters, Dimensions& dims) {
  ASSIGN_OR_RETURN(dims.heads, parameters.Count("attention.head_count", 1 << 16));
  ASSIGN_OR_RETURN(dims.kv_heads, parameters.Count("attention.head_count_kv", 1 << 16, dims.heads));
  if (dims.heads % dims.kv_heads != 0) {
    return Fault(dims.heads, " heads can't share ", dims.kv_heads, " key-value heads evenly");
  }
  if (!parameters.Has("attention.key_length") && dims.embedding % dims.heads != 0) {
    return Fault("embedding length ", dims.embedding, " is not a multiple of ", dims.heads,
                 " heads");
  }
  const int32_t even_share = dims.embedding / dims.heads;
  ASSIGN_OR_RETURN(dims.head_dim,
                   parameters.Count("attention.key_length", kMaxHeadDim, even_share));
  ASSIGN_OR_RETURN(const int32_t value_dim,
                   parameters.Count("attention.value_length", kMaxHeadDim, dims.head_dim));
  ASSIGN_OR_RETURN(const int32_t rotated,
                   parameters.Count("rope.dimension_count", kMaxHeadDim, dims.head_dim));
  if (value_dim != dims.head_dim || rotated != dims.head_dim || dims.head_dim % 2 != 0) {
    return Fault("a head's key, value and rotated parts must have one even length; they have ",
                 dims.head_dim, ", ", value_dim, " and ", rotated);
  }
  return absl::OkStatus();
}

absl::StatusOr<Dimensions> ReadDimensions(const Checkpoint& checkpoint) {
  const Parameters& parameters = checkpoint.parameters;
  RETURN_IF_ERROR(RefuseUnknown(parameters));
  Dimensions dims;
  const auto num_tensors = static_cast<int64_t>(checkpoint.tensors.tensors().size());
  ASSIGN_OR_RETURN(dims.layers, parameters.Count("block_count", num_tensors));
  ASSIGN_OR_RETURN(dims.embedding, parameters.Count("embedding_length", 1 << 20));
  ASSIGN_OR_RETURN(dims.feed_forward, parameters.Count("feed_forward_length", 1 << 24));
  ASSIGN_OR_RETURN(dims.context_tokens,
                   parameters.Count("context_length", std::numeric_limits<int32_t>::max()));
  RETURN_IF_ERROR(ReadHeads(parameters, dims));
  const int32_t tokens = checkpoint.vocabulary.size;
  ASSIGN_OR_RETURN(const int64_t vocab, parameters.Integer("vocab_size", tokens));
  if (vocab != tokens) {
    return Fault(parameters.NameOf("vocab_size"), " is ", vocab, ", but there are ", tokens,
                 " tokens");
  }
  ASSIGN_OR_RETURN(const double epsilon, parameters.Real("attention.layer_norm_rms_epsilon"));
  if (!(epsilon > 0 && epsilon < 1)) return Fault("the norms' epsilon is ", epsilon);
  dims.epsilon = static_cast<float>(epsilon);
  ASSIGN_OR_RETURN(dims.rotation, ReadRotation(parameters, dims.head_dim));
  return dims;
}

struct Layer {
  const float* attention_norm = nullptr;
  const float* feed_forward_norm = nullptr;
  PackedMatrix query, key, value, output;
  PackedMatrix gate, up, down;
};

struct Weights {
  PackedMatrix embedding;  // [vocab][embedding]
  PackedMatrix head;       // the same where the two are tied
  const float* output_norm = nullptr;
  const float* rotation_factors = nullptr;  // [head_dim / 2]; null: none
  std::vector<Layer> layers;
  AlignedMemory memory;
};

bool IsQuantised(const PackedMatrix& matrix) {
  return matrix.packing == Packing::kU4 || matrix.packing == Packing::kU8;
}

// Where 8 bits are allowed.
Precision PrecisionFor(const Weights& weights) {
  bool quantised = IsQuantised(weights.head);
  for (const Layer& layer : weights.layers) {
    for (const PackedMatrix* matrix : {&layer.query, &layer.key, &layer.value, &layer.output,
                                       &layer.gate, &layer.up, &layer.down}) {
      quantised |= IsQuantised(*matrix);
    }
  }
  return quantised ? Precision::kInt8 : Precision::kBf16;
}

absl::Status PlanLayer(const Dimensions& dims, int32_t idx, HeadRows rotated, WeightPlan& plan,
                       Layer& layer) {
  const std::string at = absl::StrCat("blk.", idx, ".");
  const int64_t width = dims.embedding;
  const int64_t inner = dims.feed_forward;
  const int64_t query = int64_t{dims.heads} * dims.head_dim;
  const int64_t kv = int64_t{dims.kv_heads} * dims.head_dim;
  RETURN_IF_ERROR(plan.Vector(at + "attn_norm.weight", width, &layer.attention_norm));
  RETURN_IF_ERROR(plan.Vector(at + "ffn_norm.weight", width, &layer.feed_forward_norm));
  RETURN_IF_ERROR(plan.Matrix(at + "attn_q.weight", query, width, &layer.query, rotated));
  RETURN_IF_ERROR(plan.Matrix(at + "attn_k.weight", kv, width, &layer.key, rotated));
  RETURN_IF_ERROR(plan.Matrix(at + "attn_v.weight", kv, width, &layer.value));
  RETURN_IF_ERROR(plan.Matrix(at + "attn_output.weight", width, query, &layer.output));
  RETURN_IF_ERROR(plan.Matrix(at + "ffn_gate.weight", inner, width, &layer.gate));
  RETURN_IF_ERROR(plan.Matrix(at + "ffn_up.weight", inner, width, &layer.up));
  return plan.Matrix(at + "ffn_down.weight", width, inner, &layer.down);
}

absl::Status LoadWeights(const ModelSource& source, const Dimensions& dims, Weights& weights) {
  WeightPlan plan(source.checkpoint.tensors);
  const int64_t vocab = source.card.vocab_size;
  RETURN_IF_ERROR(plan.Matrix("token_embd.weight", vocab, dims.embedding, &weights.embedding));
  ASSIGN_OR_RETURN(const bool tied, source.checkpoint.parameters.Boolean(
                                        "tie_embeddings", !plan.Has("output.weight")));
  if (tied) {
    plan.Ignore("output.weight");
  } else {
    RETURN_IF_ERROR(plan.Matrix("output.weight", vocab, dims.embedding, &weights.head));
  }
  RETURN_IF_ERROR(plan.Vector("output_norm.weight", dims.embedding, &weights.output_norm));
  if (plan.Has("rope_freqs.weight")) {
    RETURN_IF_ERROR(plan.Vector("rope_freqs.weight", dims.head_dim / 2, &weights.rotation_factors));
  }
  // GGUF files of this architecture hold the rows as they are wanted.
  const bool halves = source.checkpoint.tensors.convention() == Convention::kHuggingFace;
  const HeadRows rotated = halves ? HeadRows{dims.head_dim, dims.head_dim} : HeadRows{};
  weights.layers.resize(dims.layers);
  for (int32_t i = 0; i < dims.layers; ++i) {
    RETURN_IF_ERROR(PlanLayer(dims, i, rotated, plan, weights.layers[i]));
  }
  RETURN_IF_ERROR(plan.CheckNothingLeft());
  ASSIGN_OR_RETURN(weights.memory, plan.Pack(*source.team));
  if (tied) weights.head = weights.embedding;
  return absl::OkStatus();
}

// Divides by what the file gives for each pair, where it does.
absl::Status ApplyFactors(const float* factors, std::vector<double>& rotation) {
  for (size_t i = 0; factors != nullptr && i < rotation.size(); ++i) {
    if (!(factors[i] > 0 && factors[i] < std::numeric_limits<float>::infinity())) {
      return Fault("tensor 'rope_freqs.weight' holds ", factors[i]);
    }
    rotation[i] /= factors[i];
  }
  return absl::OkStatus();
}

// Activations between the products, [max_rows][cols] each.
struct Scratch {
  std::vector<float> x;  // the residual stream
  std::vector<float> query, key, value;
  std::vector<float> attended;
  std::vector<float> gate, up;
  InputBuffer inner;  // of the last product of a layer
};

class LlamaModel final : public Model {
 public:
  static absl::StatusOr<std::unique_ptr<Model>> Create(ModelSource source, const Dimensions& dims,
                                                       Weights weights);
  const ModelCard& card() const override { return card_; }

  void Forward(const Batch& batch, std::byte* pool, float* logits) override {
    const Turn turn(turns_);
    pass_->Begin(batch, pool, weights_.embedding, scratch_.x.data());
    for (int32_t layer = 0; layer < dims_.layers; ++layer) {
      Attention(layer);
      FeedForward(weights_.layers[layer]);
    }
    if (!batch.logit_rows.empty()) Head(batch, logits);
  }

 private:
  LlamaModel(ModelSource source, const Dimensions& dims, Weights weights)
      : dims_(dims),
        weights_(std::move(weights)),
        ops_(source.ops),
        team_(std::move(source.team)),
        card_(std::move(source.card)) {}

  void Attention(int32_t idx);
  void FeedForward(const Layer& layer);
  void GateUnits(const Layer& layer, const Activations& input, TileRange units);
  void Head(const Batch& batch, float* logits);

  const Dimensions dims_;
  const Weights weights_;
  const Ops& ops_;
  const std::unique_ptr<Team> team_;
  const ModelCard card_;
  TurnQueue turns_;
  // The rest belongs to whoever has the turn.
  std::unique_ptr<ForwardPass> pass_;
  Scratch scratch_;
};

absl::StatusOr<std::unique_ptr<Model>> LlamaModel::Create(ModelSource source,
                                                          const Dimensions& dims, Weights weights) {
  PassShape shape;
  shape.layout = source.card.cache_layout;
  shape.heads = dims.heads;
  shape.max_rows = source.options.max_rows;
  shape.max_input_cols = std::max(dims.embedding, dims.query_cols());
  shape.precision = source.quantise ? PrecisionFor(weights) : Precision::kExact;
  shape.rotation = dims.rotation;
  RETURN_IF_ERROR(ApplyFactors(weights.rotation_factors, shape.rotation));
  std::unique_ptr<LlamaModel> model(new LlamaModel(std::move(source), dims, std::move(weights)));
  const auto rows = static_cast<size_t>(shape.max_rows);
  Scratch& scratch = model->scratch_;
  ASSIGN_OR_RETURN(scratch.inner,
                   InputBuffer::Create(shape.max_rows, dims.feed_forward, shape.precision));
  scratch.x.resize(rows * dims.embedding);
  scratch.query.resize(rows * dims.query_cols());
  scratch.attended.resize(rows * dims.query_cols());
  scratch.key.resize(rows * dims.kv_cols());
  scratch.value.resize(rows * dims.kv_cols());
  scratch.gate.resize(rows * dims.feed_forward);
  scratch.up.resize(rows * dims.feed_forward);
  ASSIGN_OR_RETURN(model->pass_, ForwardPass::Create(model->ops_, *model->team_, shape));
  return model;
}

void LlamaModel::Attention(int32_t idx) {
  const Layer& layer = weights_.layers[idx];
  Scratch& s = scratch_;
  enum { kQuery, kKey, kValue };
  const std::array<Product, 3> products = {{
      {&layer.query, {s.query.data(), dims_.query_cols()}},
      {&layer.key, {s.key.data(), dims_.kv_cols()}},
      {&layer.value, {s.value.data(), dims_.kv_cols()}},
  }};
  const auto finish = [&](size_t product, TileRange features) {
    if (product == kQuery) pass_->Rotate(s.query.data(), dims_.query_cols(), features);
    if (product == kKey) {
      pass_->Rotate(s.key.data(), dims_.kv_cols(), features);
      pass_->Store(ForwardPass::Cached::kKey, idx, s.key.data(), features);
    }
    if (product == kValue) {
      pass_->Store(ForwardPass::Cached::kValue, idx, s.value.data(), features);
    }
  };
  pass_->WithInput({s.x.data(), dims_.embedding, layer.attention_norm, dims_.epsilon},
                   pass_->Multiplying(products, finish));
  pass_->Attend(idx, s.query.data(), s.attended.data());
  const Product output = {&layer.output, {s.x.data(), dims_.embedding, true}};
  pass_->WithInput({s.attended.data(), dims_.query_cols(), nullptr, 0},
                   pass_->Multiplying({&output, 1}));
}

void LlamaModel::FeedForward(const Layer& layer) {
  const int32_t units = (layer.gate.tiles() + kUnitTiles - 1) / kUnitTiles;
  pass_->WithInput({scratch_.x.data(), dims_.embedding, layer.feed_forward_norm, dims_.epsilon},
                   {units, kUnitPiece, [&](const Activations& input, TileRange some) {
                      GateUnits(layer, input, some);
                    }});
  const Product down = {&layer.down, {scratch_.x.data(), dims_.embedding, true}};
  pass_->OnTeam(scratch_.inner.View(pass_->rows(), dims_.feed_forward),
                pass_->Multiplying({&down, 1}));
}

// Both products of some features and what follows from them alone, in units of two tiles: a
// quantised block of the next product's input.
void LlamaModel::GateUnits(const Layer& layer, const Activations& input, TileRange units) {
  const TileRange tiles = {units.first * kUnitTiles,
                           std::min(units.last * kUnitTiles, layer.gate.tiles())};
  const int32_t cols = dims_.feed_forward;
  ops_.matmul(layer.gate, input, tiles, {scratch_.gate.data(), cols});
  ops_.matmul(layer.up, input, tiles, {scratch_.up.data(), cols});
  const TileRange features = {tiles.first * kTileRows, std::min(tiles.last * kTileRows, cols)};
  const Activations inner = scratch_.inner.View(input.rows, cols);
  for (int32_t row = 0; row < input.rows; ++row) {
    const size_t at = size_t(row) * cols + features.first;
    ops_.silu_mul(scratch_.gate.data() + at, scratch_.up.data() + at,
                  features.last - features.first, scratch_.inner.values() + at);
    scratch_.inner.Quantise(ops_, inner, row, features);
  }
}

void LlamaModel::Head(const Batch& batch, float* logits) {
  const Product head = {&weights_.head, {logits, card_.vocab_size}};
  InputRows input = {scratch_.x.data(), dims_.embedding, weights_.output_norm, dims_.epsilon};
  input.pick = batch.logit_rows;
  pass_->WithInput(input, pass_->Multiplying({&head, 1}));
}

absl::StatusOr<int32_t> ContextTokens(const ModelOptions& options, const Dimensions& dims) {
  if (options.max_context_tokens == 0) return dims.context_tokens;
  if (options.max_context_tokens > 0 && options.max_context_tokens <= dims.context_tokens) {
    return options.max_context_tokens;
  }
  return Fault("a context of ", options.max_context_tokens, " tokens was asked for; the model has ",
               dims.context_tokens);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Load(ModelSource source) {
  ASSIGN_OR_RETURN(const Dimensions dims, ReadDimensions(source.checkpoint));
  ASSIGN_OR_RETURN(const int32_t context_tokens, ContextTokens(source.options, dims));
  Weights weights;
  RETURN_IF_ERROR(LoadWeights(source, dims, weights));
  CacheLayout layout;
  layout.num_layers = dims.layers;
  layout.num_kv_heads = dims.kv_heads;
  layout.head_dim = dims.head_dim;
  layout.block_tokens = source.options.block_tokens;
  layout.dtype = source.kv_dtype;
  source.CompleteCard(layout, context_tokens);
  return LlamaModel::Create(std::move(source), dims, std::move(weights));
}

}  // namespace pdserve::engine::llama
