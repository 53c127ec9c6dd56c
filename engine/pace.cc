#include "engine/pace.h"

#include <algorithm>
#include <bit>

namespace pdserve::engine {
namespace {

constexpr int32_t kLeastTokens = 16;
constexpr int32_t kFirstTokens = 32;  // while nothing is known
constexpr double kWeight = 0.2;       // of the newest value in a mean

size_t SizeOf(int32_t decode_rows) {
  return std::min<size_t>(std::bit_width(static_cast<uint32_t>(decode_rows)) - 1, 15);
}

}  // namespace

int32_t Pace::PromptTokens(int32_t decode_rows, int32_t budget) const {
  if (target_ <= absl::ZeroDuration() || decode_rows == 0) return budget;
  if (token_cost_ <= 0) return std::min(budget, kFirstTokens);
  const double left = absl::ToDoubleSeconds(target_) - RowsCost(decode_rows);
  const double tokens = std::clamp<double>(left / token_cost_, kLeastTokens, 1 << 20);
  return std::min(budget, static_cast<int32_t>(tokens));
}

void Pace::OnStep(const Step& step, absl::Duration took) {
  const double seconds = absl::ToDoubleSeconds(took);
  if (step.prompt_tokens == 0 && step.decode_rows > 0) {
    Learn(seconds, rows_cost_[SizeOf(step.decode_rows)]);
  }
  // A short chunk's time is mostly that of reading the weights, which the rows paid for.
  if (step.prompt_tokens < kLeastTokens) return;
  const double rows = step.decode_rows > 0 ? RowsCost(step.decode_rows) : 0;
  Learn(std::max(seconds - rows, 0.0) / step.prompt_tokens, token_cost_);
}

void Pace::Learn(double value, double& mean) {
  mean = mean == 0 ? value : mean + kWeight * (value - mean);
}

// Of the nearest number of rows that is known, fewer first.
double Pace::RowsCost(int32_t decode_rows) const {
  const size_t size = SizeOf(decode_rows);
  for (size_t i = size + 1; i-- > 0;) {
    if (rows_cost_[i] > 0) return rows_cost_[i];
  }
  for (size_t i = size + 1; i < rows_cost_.size(); ++i) {
    if (rows_cost_[i] > 0) return rows_cost_[i];
  }
  return 0;
}

}  // namespace pdserve::engine
