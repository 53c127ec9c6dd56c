// What a step has to say, collected by session and sent at its end: answers, then all tokens in one
// message, then endings, so that an attempt's order is kept. Owner: the desk; the step loop's
// thread. Sessions are reached through SessionPort, which is safe from any thread.
#ifndef PDSERVE_NODE_OUTBOX_H_
#define PDSERVE_NODE_OUTBOX_H_

#include <cstdint>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "engine/attempt.h"
#include "proto/node.pb.h"

namespace pdserve::node {

class SessionPort {
 public:
  virtual ~SessionPort() = default;
  /// Never blocks. A session that is gone takes nothing; one that does not read is dropped.
  virtual void Send(SessionId session, v1::NodeMessage message) = 0;
  virtual void Broadcast(const v1::NodeMessage& message) = 0;
  /// Drops the sessions that have been silent for too long; says when to look again.
  virtual absl::Time DropSilent(absl::Time now) = 0;
};

class Outbox {
 public:
  void Accepted(const engine::AttemptKey& key);
  void Refused(const engine::AttemptKey& key, const engine::Refusal& refusal);
  void Token(const engine::AttemptKey& key, uint32_t index, TokenId token);
  void Finished(const engine::AttemptKey& key, const engine::Ending& ending);

  void Flush(SessionPort& port);

 private:
  struct Pending {
    std::vector<v1::NodeMessage> answers;
    v1::Tokens tokens;
    absl::flat_hash_map<AttemptId, int> places;  // of an attempt in `tokens`
    std::vector<v1::NodeMessage> endings;
  };
  absl::btree_map<SessionId, Pending> pending_;
};

}  // namespace pdserve::node

#endif  // PDSERVE_NODE_OUTBOX_H_
