// How many tokens of prompts a step takes beside its decode rows, so that these have their next
// token within a target. Learns from steps what rows and tokens cost. Pure; the step loop's thread.
#ifndef PDSERVE_ENGINE_PACE_H_
#define PDSERVE_ENGINE_PACE_H_

#include <array>
#include <cstdint>

#include "absl/time/time.h"

namespace pdserve::engine {

class Pace {
 public:
  /// Zero: no target, and no limit.
  explicit Pace(absl::Duration target) : target_(target) {}

  struct Step {
    int32_t decode_rows = 0;
    int32_t prompt_tokens = 0;
  };
  /// Tokens of prompts for a step with so many decode rows, of at most `budget`. Never so few that
  /// prompts stand still: with a target that can't be held, they go on slowly.
  int32_t PromptTokens(int32_t decode_rows, int32_t budget) const;
  void OnStep(const Step& step, absl::Duration took);

 private:
  /// Running means, in seconds; zero: not known yet.
  static void Learn(double value, double& mean);
  double RowsCost(int32_t decode_rows) const;

  const absl::Duration target_;
  std::array<double, 16> rows_cost_{};  // of a step of decode rows alone, by their binary logarithm
  double token_cost_ = 0;               // of each token of a prompt more
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_PACE_H_
