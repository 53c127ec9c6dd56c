#include "router/stop_strings.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace pdserve::router {

StopStrings::StopStrings(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    PD_CHECK(!stop.empty());
    Automaton automaton{stop, std::vector<uint32_t>(stop.size(), 0)};
    for (size_t i = 1, border = 0; i < stop.size(); ++i) {
      while (border > 0 && stop[i] != stop[border]) border = automaton.fallback[border - 1];
      if (stop[i] == stop[border]) ++border;
      automaton.fallback[i] = static_cast<uint32_t>(border);
    }
    automata_.push_back(std::move(automaton));
  }
}

void StopStrings::Step(Automaton& automaton, char byte) {
  size_t& state = automaton.state;
  while (state > 0 && automaton.stop[state] != byte) state = automaton.fallback[state - 1];
  if (automaton.stop[state] == byte) ++state;
}

std::string StopStrings::Push(std::string_view piece) {
  if (matched_) return "";
  if (automata_.empty()) return std::string(piece);
  std::string shown = std::exchange(held_, "");
  size_t hold = 0;
  for (const char byte : piece) {
    shown.push_back(byte);
    hold = 0;
    const std::string* match = nullptr;
    for (Automaton& automaton : automata_) {
      Step(automaton, byte);
      hold = std::max(hold, automaton.state);
      const bool is_whole = automaton.state == automaton.stop.size();
      if (is_whole && (match == nullptr || automaton.stop.size() > match->size())) {
        match = &automaton.stop;
      }
    }
    if (match != nullptr) {
      matched_ = *match;
      shown.resize(shown.size() - match->size());
      return shown;
    }
  }
  if (piece.empty()) {
    held_ = std::move(shown);
    return "";
  }
  held_ = shown.substr(shown.size() - hold);
  shown.resize(shown.size() - hold);
  return shown;
}

std::string StopStrings::Finish() { return matched_ ? "" : std::exchange(held_, ""); }

}  // namespace pdserve::router
