// Stop strings over a stream of text: holds back what may still become one, cuts exactly where one
// begins. The match that is complete first wins, the longest of those that end together; so the
// result does not depend on how the text was cut into pieces. Belongs to one thread.
// Each byte costs one step of a Knuth-Morris-Pratt automaton per stop string.
#ifndef PDSERVE_ROUTER_STOP_STRINGS_H_
#define PDSERVE_ROUTER_STOP_STRINGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pdserve::router {

class StopStrings {
 public:
  /// None may be empty.
  explicit StopStrings(const std::vector<std::string>& stops);

  /// The text that can be shown after `piece`. After a match nothing is shown any more.
  std::string Push(std::string_view piece);

  /// The stream has ended without a match: what was held back.
  std::string Finish();

  /// The string that matched.
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  struct Automaton {
    std::string stop;
    std::vector<uint32_t> fallback;  // [stop.size()]: longest proper border of stop[0, i]
    size_t state = 0;                // bytes of `stop` that the text now ends with
  };
  static void Step(Automaton& automaton, char byte);

  std::vector<Automaton> automata_;
  std::string held_;
  std::optional<std::string> matched_;
};

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_STOP_STRINGS_H_
