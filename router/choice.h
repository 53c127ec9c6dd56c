// The life of one choice, as a pure state machine: events in, actions out; no I/O, no clock of its
// own. Belongs to the request's strand.
//   placing > prefilling > decoding > ended, and from any of the middle ones back to placing when
//   an attempt fails and another may be tried.
// Invariants: at most one attempt is live; tokens are merged by index, the first to arrive wins,
// and only a run without gaps from 0 is shown; it ends exactly once.
#ifndef PDSERVE_ROUTER_CHOICE_H_
#define PDSERVE_ROUTER_CHOICE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "router/fleet_snapshot.h"

namespace pdserve::router {

enum class ChoiceState { kPlacing, kPrefilling, kDecoding, kEnded };

struct Attempt {
  AttemptId id;
  NodeIndex prefill;
  NodeIndex decode;  // the same node: the whole generation runs there
  bool is_whole() const { return prefill == decode; }
};

enum class LegEnd { kStop, kLength, kCancelled, kFailed, kHandedOver };

/// Durations of a finished leg as its node measured them; zero where it has no such phase.
struct LegTimes {
  absl::Duration queue, prefill, transfer, decode_queue, decode;
};

// ---- events
struct Placed {
  Attempt attempt;
};
struct Unplaceable {
  std::string reason;
  absl::Duration retry_after;
};
struct TokensArrived {
  uint32_t first_index = 0;
  std::vector<TokenId> tokens;
};
struct LegFinished {
  LegEnd end = LegEnd::kFailed;
  std::string error;
  uint32_t output_tokens = 0;  // of the generation in all
  uint32_t cached_tokens = 0;
  LegTimes times;
};
struct LegRefused {
  std::string reason;
  bool is_retryable = false;
  absl::Duration retry_after;
};
struct LegLost {};
/// Something from a node about an attempt; void when the attempt is not the live one.
struct NodeEvent {
  AttemptId attempt;
  NodeIndex from;
  std::variant<TokensArrived, LegFinished, LegRefused, LegLost> what;
};
struct Satisfied {};  // a stop string matched
struct Abandoned {};  // the client left, or another choice of the request failed
struct Expired {};    // the request's time is over

using ChoiceEvent = std::variant<Placed, Unplaceable, NodeEvent, Satisfied, Abandoned, Expired>;

// ---- actions
struct Place {};  // answer with Placed or Unplaceable
struct StartAttempt {
  Attempt attempt;
};
/// The node's leg is of no more use. is_over: it has not said its last word but is about to.
struct LetGo {
  AttemptId attempt;
  NodeIndex node;
  bool is_over = false;
};
struct Deliver {  // tokens()[first, first + count)
  size_t first = 0, count = 0;
};
struct End {};

using ChoiceAction = std::variant<Place, StartAttempt, LetGo, Deliver, End>;

/// kFailed: nodes failed at it. kRejected: no node takes it now. kRefused: none ever will.
enum class Ending {
  kStop,
  kLength,
  kSatisfied,
  kAbandoned,
  kExpired,
  kFailed,
  kRejected,
  kRefused
};

struct ChoiceLimits {
  int64_t max_tokens = 1;
  int64_t max_tries = 3;
  uint32_t vocab_size = 0;
  std::vector<TokenId> end_tokens;  // sorted; empty: no token ends it
};

class Choice {
 public:
  Choice(ChoiceLimits limits, absl::Time now);

  /// The one transition function. The first event is Placed or Unplaceable.
  std::vector<ChoiceAction> Advance(const ChoiceEvent& event, absl::Time now);

  ChoiceState state() const { return state_; }
  Ending ending() const { return ending_; }                    // once ended
  const std::string& failure() const { return failure_; }      // kFailed, kRejected, kRefused: why
  absl::Duration retry_after() const { return retry_after_; }  // kRejected
  const std::vector<TokenId>& tokens() const { return tokens_; }
  const std::vector<NodeIndex>& avoid() const { return avoid_; }
  bool is_whole() const { return attempt_.is_whole(); }  // the last attempt, once there is one
  uint32_t cached_tokens() const { return cached_tokens_; }
  const LegTimes& leg_times() const { return leg_times_; }  // of the last attempt
  /// Time spent in a state; the states' sum up to the choice's life.
  absl::Duration time_in(ChoiceState state) const;

 private:
  struct Leg {
    NodeIndex node;
    bool is_open = false;
    bool has_tokens = false;
  };
  using Actions = std::vector<ChoiceAction>;

  void On(const Placed& event, Actions& actions);
  void On(const Unplaceable& event, Actions& actions);
  void On(const NodeEvent& event, Actions& actions);
  void OnTokens(Leg& leg, const TokensArrived& event, Actions& actions);
  void OnFinished(Leg& leg, const LegFinished& event, Actions& actions);
  void OnLost(Leg& leg, Actions& actions);
  void Merge(const TokensArrived& event);
  void EndIfComplete(Actions& actions);
  void OnRefused(Leg& leg, const LegRefused& event, Actions& actions);
  /// Ends this attempt and asks for another; after the last try ends the choice as `ending`.
  void Fail(const Leg& leg, std::string why, Actions& actions, Ending ending = Ending::kFailed);
  /// The client has all that would be generated; only the last word about it is missing.
  std::optional<Ending> FoundEnd() const;
  void Finish(Ending ending, Actions& actions);
  void LetGoOfLegs(bool is_complete, Actions& actions);
  void Enter(ChoiceState state);
  Leg* FindLeg(NodeIndex node);

  const ChoiceLimits limits_;
  ChoiceState state_ = ChoiceState::kPlacing;
  Ending ending_ = Ending::kFailed;
  std::string failure_;
  absl::Duration retry_after_;
  int64_t tries_ = 0;
  bool is_live_ = false;  // attempt_ is
  Attempt attempt_;
  Leg prefill_leg_, decode_leg_;  // a whole attempt has the first alone
  std::vector<TokenId> tokens_;
  absl::btree_map<uint32_t, TokenId> ahead_;  // beyond a gap; indices above tokens_.size()
  std::optional<LegFinished> finish_;         // the last word, while tokens before it are missing
  std::vector<NodeIndex> avoid_;
  uint32_t cached_tokens_ = 0;
  LegTimes leg_times_;
  absl::Time now_;
  absl::Time entered_;
  absl::Duration spent_[4];
};

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_CHOICE_H_
