#include "prefill/planner.h"

#include <algorithm>
#include <utility>

namespace pdserve::prefill {
namespace {

/// Indices of the prompts that get their blocks now; ascending.
std::vector<size_t> Admit(const PromptState& state) {
  std::vector<size_t> admitted;
  int32_t free_blocks = state.free_blocks;
  int32_t ahead_blocks = state.ahead_blocks;
  bool blocked = false;
  for (const bool ahead : {false, true}) {
    for (size_t i = 0; i < state.prompts.size() && !blocked; ++i) {
      const PromptView& prompt = state.prompts[i];
      const int32_t needed = prompt.needed_blocks;
      if (needed == 0 || prompt.is_ahead != ahead) continue;
      blocked = needed > free_blocks || (ahead && needed > ahead_blocks);
      if (blocked) continue;
      free_blocks -= needed;
      if (ahead) ahead_blocks -= needed;
      admitted.push_back(i);
    }
  }
  std::sort(admitted.begin(), admitted.end());
  return admitted;
}

/// Indices of the prompts that have blocks, those of `admitted` included; ascending.
std::vector<size_t> Ready(const PromptState& state, const std::vector<size_t>& admitted) {
  std::vector<size_t> ready = admitted;
  for (size_t i = 0; i < state.prompts.size(); ++i) {
    if (state.prompts[i].needed_blocks == 0) ready.push_back(i);
  }
  std::sort(ready.begin(), ready.end());
  return ready;
}

}  // namespace

PromptPlan PlanPrompts(const PromptState& state) {
  PromptPlan plan;
  plan.admitted = Admit(state);
  const std::vector<size_t> ready = Ready(state, plan.admitted);
  std::vector<int32_t> shares(state.prompts.size(), 0);
  int32_t budget = std::max(state.budget_tokens, 0);
  const auto give = [&](size_t prompt, int32_t most) {
    const int32_t wanted = state.prompts[prompt].uncomputed_tokens - shares[prompt];
    const int32_t given = std::min(wanted, most);
    shares[prompt] += given;
    budget -= given;
    return given;
  };
  std::vector<size_t> shortest = ready;
  std::sort(shortest.begin(), shortest.end(), [&](size_t a, size_t b) {
    return std::pair(state.prompts[a].uncomputed_tokens, a) <
           std::pair(state.prompts[b].uncomputed_tokens, b);
  });
  int32_t half = budget / 2;
  for (size_t prompt : shortest) half -= give(prompt, half);
  for (size_t prompt : ready) give(prompt, budget);
  for (size_t prompt : ready) {
    if (shares[prompt] > 0) plan.chunks.push_back({prompt, shares[prompt]});
  }
  return plan;
}

}  // namespace pdserve::prefill
