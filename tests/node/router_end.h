// A router's end of one session, for tests: writes what a test says, and lets it wait, with a
// limit, for what the node answers. One thread writes and waits; another one reads.
#ifndef PDSERVE_TESTS_NODE_ROUTER_END_H_
#define PDSERVE_TESTS_NODE_ROUTER_END_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "engine/generation.h"
#include "proto/node.grpc.pb.h"

namespace pdserve::testing {

/// What the node said of one attempt.
struct AttemptAnswers {
  int accepted = 0;
  std::optional<v1::Refused> refused;
  std::optional<uint32_t> first_index;
  std::vector<uint32_t> tokens;
  std::vector<v1::Finished> finished;
  int out_of_order = 0;
};

struct SessionAnswers {
  std::optional<v1::NodeHello> hello;
  v1::Load load;
  int num_loads = 0;
  int num_token_messages = 0;
  int num_pongs = 0;
  bool draining = false;
  bool ended = false;
  std::map<uint64_t, AttemptAnswers> attempts;
};

class RouterEnd {
 public:
  explicit RouterEnd(const std::shared_ptr<grpc::Channel>& channel, bool reads = true);
  ~RouterEnd();

  bool Write(const v1::RouterMessage& message);
  void Hello(uint32_t major = 1, const std::string& known_text = "");
  void Prefill(const engine::Generation& generation, v1::Mode mode);
  void Decode(const engine::Generation& generation, const v1::NodeHello& prefill_node);
  void Cancel(uint64_t attempt);
  void Ping();
  void WritesDone();
  /// As a router that is killed.
  void Kill();

  /// Waits until `ready`, at most 30 s; false: it was not. `ready` must not wait.
  bool Wait(const std::function<bool(const SessionAnswers&)>& ready);
  bool WaitFinished(uint64_t attempt);
  SessionAnswers answers();

 private:
  void Read();
  void Note(const v1::NodeMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteTokens(const v1::Tokens& tokens) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  grpc::ClientContext context_;
  std::unique_ptr<v1::Node::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::RouterMessage, v1::NodeMessage>> stream_;
  Mutex mutex_;
  CondVar changed_;
  SessionAnswers answers_ ABSL_GUARDED_BY(mutex_);
  std::thread reader_;
};

}  // namespace pdserve::testing

#endif  // PDSERVE_TESTS_NODE_ROUTER_END_H_
