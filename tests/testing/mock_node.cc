#include "tests/testing/mock_node.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "absl/time/clock.h"
#include "common/check.h"
#include "common/mutex.h"
#include "proto/node.grpc.pb.h"

namespace pdserve::testing {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);
using Reactor = grpc::ServerBidiReactor<v1::RouterMessage, v1::NodeMessage>;

v1::NodeMessage TokensMessage(uint64_t attempt, uint32_t first_index,
                              const std::vector<uint32_t>& ids) {
  v1::NodeMessage message;
  v1::AttemptTokens* tokens = message.mutable_tokens()->add_attempts();
  tokens->set_attempt(attempt);
  tokens->set_first_index(first_index);
  tokens->mutable_token_ids()->Add(ids.begin(), ids.end());
  return message;
}

}  // namespace

class MockService final : public v1::Node::CallbackService {
 public:
  class Stream;

  explicit MockService(MockNodeOptions given) : options(std::move(given)) {}

  Reactor* Session(grpc::CallbackServerContext* context) override;
  void Start();
  void Stop();

  void OnMessage(Stream* stream, const v1::RouterMessage& message);
  void OnPrefill(const v1::PrefillRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void OnDecode(const v1::DecodeRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void OnCancel(uint64_t attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void SendAll(const v1::NodeMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void SendAccepted(uint64_t attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void SendOutput(uint64_t attempt, uint32_t from, const std::vector<uint32_t>& output)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Finish(uint64_t attempt, v1::FinishReason reason, uint32_t output_tokens,
              const std::string& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  v1::NodeMessage Hello() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // The output cut at max_tokens, and how it ends.
  std::pair<std::vector<uint32_t>, v1::FinishReason> OutputOf(
      const v1::Generation& generation) const;

  template <typename T>
  T Next(std::deque<T>& queue) {
    MutexLock lock(&mutex);
    const absl::Time end = absl::Now() + kPatience;
    while (queue.empty()) {
      PD_CHECK(absl::Now() < end);
      changed.WaitFor(mutex, absl::Seconds(1));
    }
    T item = std::move(queue.front());
    queue.pop_front();
    return item;
  }

  MockNodeOptions options;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
  mutable Mutex mutex;
  CondVar changed;
  std::set<Stream*> streams;  // all below: guarded by mutex
  std::deque<v1::PrefillRequest> prefills;
  std::deque<v1::DecodeRequest> decodes;
  std::deque<uint64_t> cancels;
  std::set<uint64_t> live;  // attempts without their last word
  size_t num_prefills = 0, num_decodes = 0, num_cancels = 0;
  uint64_t incarnation = 0;
  bool is_silent = false;
};

class MockService::Stream final : public Reactor {
 public:
  Stream(MockService* service, grpc::CallbackServerContext* context)
      : service_(service), context_(context) {
    StartRead(&incoming_);
  }

  void Send(const v1::NodeMessage& message) {
    MutexLock lock(&mutex_);
    if (is_over_) return;
    outgoing_.push_back(message);
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  void Drop() { context_->TryCancel(); }

  void OnReadDone(bool ok) override {
    if (ok) {
      service_->OnMessage(this, incoming_);
      StartRead(&incoming_);
      return;
    }
    MutexLock lock(&mutex_);
    is_over_ = true;
    grpc::ServerBidiReactor<v1::RouterMessage, v1::NodeMessage>::Finish(grpc::Status::OK);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    outgoing_.pop_front();
    if (ok && !is_over_ && !outgoing_.empty()) StartWrite(&outgoing_.front());
  }

  void OnDone() override {
    {
      MutexLock lock(&service_->mutex);
      service_->streams.erase(this);
      service_->changed.NotifyAll();
    }
    delete this;
  }

 private:
  MockService* const service_;
  grpc::CallbackServerContext* const context_;
  v1::RouterMessage incoming_;
  Mutex mutex_;
  std::deque<v1::NodeMessage> outgoing_;  // the first is being written
  bool is_over_ = false;
};

Reactor* MockService::Session(grpc::CallbackServerContext* context) {
  return new Stream(this, context);
}

void MockService::Start() {
  grpc::ServerBuilder builder;
  builder.RegisterService(this);
  builder.SetMaxReceiveMessageSize(64 << 20);
  int bound = 0;
  if (!options.listen.empty()) {
    const std::string at = port == 0 ? options.listen : "127.0.0.1:" + std::to_string(port);
    builder.AddListeningPort(at, grpc::InsecureServerCredentials(), &bound);
  }
  server = builder.BuildAndStart();
  PD_CHECK(server != nullptr);
  port = bound;
  MutexLock lock(&mutex);
  ++incarnation;
  live.clear();
}

void MockService::Stop() {
  if (server == nullptr) return;
  server->Shutdown(std::chrono::system_clock::now());
  server->Wait();
  server.reset();
}

v1::NodeMessage MockService::Hello() const {
  v1::NodeMessage message;
  v1::NodeHello& hello = *message.mutable_hello();
  hello.set_protocol_major(options.protocol_major);
  hello.set_node_id(options.id);
  hello.set_incarnation(incarnation);
  hello.set_prefills(options.prefills);
  hello.set_decodes(options.decodes);
  hello.set_fingerprint(std::string(32, static_cast<char>(options.fingerprint)));
  hello.set_transfer_address("transfer-of-" + options.id);
  hello.set_model_name(options.model_name);
  hello.set_vocab_size(options.vocab_size);
  hello.set_max_context_tokens(options.max_context_tokens);
  hello.set_block_tokens(32);
  hello.set_capacity_blocks(1024);
  hello.set_text_sha256("sha of " + options.text_spec);
  hello.set_text_spec(options.text_spec);
  hello.set_refusal(options.refusal);
  for (const uint32_t id : options.end_tokens) hello.add_end_token_ids(id);
  return message;
}

std::pair<std::vector<uint32_t>, v1::FinishReason> MockService::OutputOf(
    const v1::Generation& generation) const {
  std::vector<uint32_t> output =
      options.output ? options.output(generation) : MockNode::Alphabet(generation);
  if (output.size() < generation.max_tokens()) return {std::move(output), v1::FINISH_STOP};
  output.resize(generation.max_tokens());
  return {std::move(output), v1::FINISH_LENGTH};
}

void MockService::OnMessage(Stream* stream, const v1::RouterMessage& message) {
  MutexLock lock(&mutex);
  if (is_silent) return;
  v1::NodeMessage answer;
  switch (message.kind_case()) {
    case v1::RouterMessage::kHello:
      streams.insert(stream);
      stream->Send(Hello());
      break;
    case v1::RouterMessage::kPing:
      answer.mutable_pong()->set_sequence(message.ping().sequence());
      stream->Send(answer);
      break;
    case v1::RouterMessage::kPrefill:
      OnPrefill(message.prefill());
      break;
    case v1::RouterMessage::kDecode:
      OnDecode(message.decode());
      break;
    case v1::RouterMessage::kCancel:
      OnCancel(message.cancel().attempt());
      break;
    default:
      break;
  }
  changed.NotifyAll();
}

void MockService::SendAll(const v1::NodeMessage& message) {
  for (Stream* stream : streams) stream->Send(message);
}

void MockService::SendAccepted(uint64_t attempt) {
  v1::NodeMessage accepted;
  accepted.mutable_accepted()->set_attempt(attempt);
  SendAll(accepted);
}

void MockService::SendOutput(uint64_t attempt, uint32_t from, const std::vector<uint32_t>& output) {
  const size_t step = std::max<size_t>(1, options.tokens_in_message);
  for (size_t i = from; i < output.size(); i += step) {
    const size_t end = std::min(output.size(), i + step);
    SendAll(TokensMessage(
        attempt, static_cast<uint32_t>(i),
        {output.begin() + static_cast<int64_t>(i), output.begin() + static_cast<int64_t>(end)}));
  }
}

void MockService::OnPrefill(const v1::PrefillRequest& request) {
  ++num_prefills;
  live.insert(request.attempt());
  if (!options.is_automatic) {
    prefills.push_back(request);
    return;
  }
  SendAccepted(request.attempt());
  auto [output, reason] = OutputOf(request.generation());
  const auto emitted = static_cast<uint32_t>(request.emitted_token_ids_size());
  const bool is_whole = request.mode() == v1::MODE_WHOLE || output.size() <= emitted + 1;
  if (!is_whole) {
    output.resize(emitted + 1);
    reason = v1::FINISH_HANDED_OVER;
  }
  SendOutput(request.attempt(), emitted, output);
  Finish(request.attempt(), reason, static_cast<uint32_t>(output.size()), "");
}

void MockService::OnDecode(const v1::DecodeRequest& request) {
  ++num_decodes;
  live.insert(request.attempt());
  if (!options.is_automatic) {
    decodes.push_back(request);
    return;
  }
  SendAccepted(request.attempt());
  const auto [output, reason] = OutputOf(request.generation());
  const auto emitted = static_cast<uint32_t>(request.emitted_token_ids_size());
  // The first token ends it: no hand-over comes, only the router's cancel.
  if (output.size() <= emitted + 1) return;
  SendOutput(request.attempt(), emitted, output);
  Finish(request.attempt(), reason, static_cast<uint32_t>(output.size()), "");
}

void MockService::OnCancel(uint64_t attempt) {
  ++num_cancels;
  cancels.push_back(attempt);
  if (options.acknowledges_cancels && live.contains(attempt)) {
    Finish(attempt, v1::FINISH_CANCELLED, 0, "");
  }
}

void MockService::Finish(uint64_t attempt, v1::FinishReason reason, uint32_t output_tokens,
                         const std::string& error) {
  live.erase(attempt);
  v1::NodeMessage message;
  v1::Finished& finished = *message.mutable_finished();
  finished.set_attempt(attempt);
  finished.set_reason(reason);
  finished.set_output_tokens(output_tokens);
  finished.set_error(error);
  finished.mutable_times()->set_prefill_us(1000);
  SendAll(message);
}

std::vector<uint32_t> MockNode::Alphabet(const v1::Generation& generation) {
  std::vector<uint32_t> output;
  for (uint32_t i = 0; i < generation.max_tokens(); ++i) output.push_back('a' + i % 26);
  return output;
}

MockNode::MockNode(MockNodeOptions options)
    : service_(std::make_unique<MockService>(std::move(options))) {
  service_->Start();
}

MockNode::~MockNode() { service_->Stop(); }

std::shared_ptr<grpc::Channel> MockNode::InProcessChannel() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(64 << 20);
  return service_->server->InProcessChannel(arguments);
}

std::string MockNode::address() const { return "127.0.0.1:" + std::to_string(service_->port); }
const MockNodeOptions& MockNode::options() const { return service_->options; }
void MockNode::Stop() { service_->Stop(); }
void MockNode::Start() { service_->Start(); }

void MockNode::DropSessions() {
  MutexLock lock(&service_->mutex);
  for (MockService::Stream* stream : service_->streams) stream->Drop();
}

void MockNode::SetSilent(bool is_silent) {
  MutexLock lock(&service_->mutex);
  service_->is_silent = is_silent;
}

void MockNode::SetAutomatic(bool is_automatic) {
  MutexLock lock(&service_->mutex);
  service_->options.is_automatic = is_automatic;
}

void MockNode::WaitForSession() {
  MutexLock lock(&service_->mutex);
  const absl::Time end = absl::Now() + kPatience;
  while (service_->streams.empty()) {
    PD_CHECK(absl::Now() < end);
    service_->changed.WaitFor(service_->mutex, absl::Seconds(1));
  }
}

v1::PrefillRequest MockNode::NextPrefill() { return service_->Next(service_->prefills); }
v1::DecodeRequest MockNode::NextDecode() { return service_->Next(service_->decodes); }
uint64_t MockNode::NextCancel() { return service_->Next(service_->cancels); }

size_t MockNode::num_prefills() const {
  MutexLock lock(&service_->mutex);
  return service_->num_prefills;
}

size_t MockNode::num_decodes() const {
  MutexLock lock(&service_->mutex);
  return service_->num_decodes;
}

size_t MockNode::num_cancels() const {
  MutexLock lock(&service_->mutex);
  return service_->num_cancels;
}

void MockNode::Send(const v1::NodeMessage& message) {
  MutexLock lock(&service_->mutex);
  service_->SendAll(message);
}

void MockNode::SendTokens(uint64_t attempt, uint32_t first_index,
                          const std::vector<uint32_t>& ids) {
  Send(TokensMessage(attempt, first_index, ids));
}

void MockNode::SendFinished(uint64_t attempt, v1::FinishReason reason, uint32_t output_tokens,
                            const std::string& error) {
  MutexLock lock(&service_->mutex);
  service_->Finish(attempt, reason, output_tokens, error);
}

void MockNode::SendRefused(uint64_t attempt, const std::string& reason, bool is_retryable) {
  v1::NodeMessage message;
  message.mutable_refused()->set_attempt(attempt);
  message.mutable_refused()->set_reason(reason);
  message.mutable_refused()->set_retryable(is_retryable);
  Send(message);
}

void MockNode::SendDraining() {
  v1::NodeMessage message;
  message.mutable_draining();
  Send(message);
}

void MockNode::SendLoad(const v1::Load& load) {
  v1::NodeMessage message;
  *message.mutable_load() = load;
  Send(message);
}

}  // namespace pdserve::testing
