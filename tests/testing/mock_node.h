// A node without an engine: speaks proto/node.proto over gRPC, within the process or on loopback.
// Automatic: answers every attempt by a rule. By hand: records what comes and sends what the test
// says. Thread-safe. Every wait gives up after 20 s, so that a broken test ends.
#ifndef PDSERVE_TESTS_TESTING_MOCK_NODE_H_
#define PDSERVE_TESTS_TESTING_MOCK_NODE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/node.pb.h"

namespace grpc {
class Channel;
}

namespace pdserve::testing {

struct MockNodeOptions {
  std::string id = "mock";
  bool prefills = true;
  bool decodes = true;
  bool is_automatic = true;
  bool acknowledges_cancels = true;
  std::string model_name = "mock-model";
  std::string text_spec = "mock";
  uint8_t fingerprint = 1;  // all of its bytes
  uint32_t vocab_size = 260;
  std::vector<uint32_t> end_tokens = {256};
  uint32_t max_context_tokens = 4096;
  uint32_t protocol_major = 1;
  std::string refusal;
  std::string listen;            // of loopback, like 127.0.0.1:0; empty: in process only
  size_t tokens_in_message = 1;  // of an automatic answer
  /// What is generated, without regard to max_tokens; ends with FINISH_STOP if it is shorter.
  std::function<std::vector<uint32_t>(const v1::Generation&)> output;
};

class MockService;

class MockNode {
 public:
  /// The same token sequence on every node: letters from 'a' on, as many as are asked for.
  static std::vector<uint32_t> Alphabet(const v1::Generation& generation);

  explicit MockNode(MockNodeOptions options);
  ~MockNode();

  /// Good until Stop.
  std::shared_ptr<grpc::Channel> InProcessChannel();
  std::string address() const;
  const MockNodeOptions& options() const;

  /// Dies: sessions are lost. Start: the same node at the same address, in a new life.
  void Stop();
  void Start();
  /// Loses the sessions, and takes new ones.
  void DropSessions();
  /// Answers no ping and nothing else while set.
  void SetSilent(bool is_silent);
  void SetAutomatic(bool is_automatic);
  void WaitForSession();

  // ---- what has come, each once, in order
  v1::PrefillRequest NextPrefill();
  v1::DecodeRequest NextDecode();
  uint64_t NextCancel();
  size_t num_prefills() const;  // ever
  size_t num_decodes() const;
  size_t num_cancels() const;

  // ---- by hand
  void Send(const v1::NodeMessage& message);
  void SendTokens(uint64_t attempt, uint32_t first_index, const std::vector<uint32_t>& ids);
  void SendFinished(uint64_t attempt, v1::FinishReason reason, uint32_t output_tokens,
                    const std::string& error = "");
  void SendRefused(uint64_t attempt, const std::string& reason, bool is_retryable);
  void SendDraining();
  void SendLoad(const v1::Load& load);

 private:
  std::unique_ptr<MockService> service_;
};

}  // namespace pdserve::testing

#endif  // PDSERVE_TESTS_TESTING_MOCK_NODE_H_
