#include "tests/node/router_end.h"

#include "absl/time/clock.h"
#include "tests/testing/rig.h"

namespace pdserve::testing {
namespace {

void Fill(const engine::Generation& generation, v1::Generation* message) {
  for (uint32_t id : generation.prompt) message->add_prompt_token_ids(id);
  message->set_max_tokens(generation.max_tokens);
  message->set_ignore_eos(generation.ignore_eos);
  message->mutable_sampling()->set_temperature(generation.sampling.temperature);
  message->mutable_sampling()->set_top_p(generation.sampling.top_p);
  message->mutable_sampling()->set_top_k(generation.sampling.top_k);
  message->mutable_sampling()->set_seed(generation.sampling.seed);
  message->mutable_sampling()->set_choice(generation.sampling.choice);
}

}  // namespace

RouterEnd::RouterEnd(const std::shared_ptr<grpc::Channel>& channel, bool reads)
    : stub_(v1::Node::NewStub(channel)), stream_(stub_->Session(&context_)) {
  if (reads) reader_ = std::thread([this] { Read(); });
}

RouterEnd::~RouterEnd() {
  context_.TryCancel();
  if (reader_.joinable()) reader_.join();
  stream_->Finish();
}

bool RouterEnd::Write(const v1::RouterMessage& message) { return stream_->Write(message); }

void RouterEnd::Hello(uint32_t major, const std::string& known_text) {
  v1::RouterMessage message;
  message.mutable_hello()->set_protocol_major(major);
  message.mutable_hello()->set_router_id("test");
  message.mutable_hello()->set_known_text_sha256(known_text);
  Write(message);
}

void RouterEnd::Prefill(const engine::Generation& generation, v1::Mode mode) {
  v1::RouterMessage message;
  v1::PrefillRequest* request = message.mutable_prefill();
  request->set_attempt(generation.key.attempt.value);
  request->set_ticket(TicketBytes(generation.key.attempt.value));
  Fill(generation, request->mutable_generation());
  for (uint32_t id : generation.emitted) request->add_emitted_token_ids(id);
  request->set_deadline_ms(absl::ToInt64Milliseconds(generation.deadline));
  request->set_mode(mode);
  Write(message);
}

void RouterEnd::Decode(const engine::Generation& generation, const v1::NodeHello& prefill_node) {
  v1::RouterMessage message;
  v1::DecodeRequest* request = message.mutable_decode();
  request->set_attempt(generation.key.attempt.value);
  request->set_ticket(TicketBytes(generation.key.attempt.value));
  Fill(generation, request->mutable_generation());
  for (uint32_t id : generation.emitted) request->add_emitted_token_ids(id);
  request->set_deadline_ms(absl::ToInt64Milliseconds(generation.deadline));
  request->set_prefill_transfer_address(prefill_node.transfer_address());
  request->set_prefill_incarnation(prefill_node.incarnation());
  Write(message);
}

void RouterEnd::Cancel(uint64_t attempt) {
  v1::RouterMessage message;
  message.mutable_cancel()->set_attempt(attempt);
  Write(message);
}

void RouterEnd::Ping() {
  v1::RouterMessage message;
  message.mutable_ping()->set_sequence(1);
  Write(message);
}

void RouterEnd::WritesDone() { stream_->WritesDone(); }
void RouterEnd::Kill() { context_.TryCancel(); }

bool RouterEnd::Wait(const std::function<bool(const SessionAnswers&)>& ready) {
  const absl::Time end = absl::Now() + absl::Seconds(30);
  MutexLock lock(&mutex_);
  while (!ready(answers_)) {
    const absl::Duration left = end - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    changed_.WaitFor(mutex_, left);
  }
  return true;
}

bool RouterEnd::WaitFinished(uint64_t attempt) {
  return Wait([attempt](const SessionAnswers& answers) {
    const auto found = answers.attempts.find(attempt);
    return found != answers.attempts.end() && !found->second.finished.empty();
  });
}

SessionAnswers RouterEnd::answers() {
  MutexLock lock(&mutex_);
  return answers_;
}

void RouterEnd::Read() {
  v1::NodeMessage message;
  while (stream_->Read(&message)) {
    MutexLock lock(&mutex_);
    Note(message);
    changed_.NotifyAll();
  }
  MutexLock lock(&mutex_);
  answers_.ended = true;
  changed_.NotifyAll();
}

void RouterEnd::Note(const v1::NodeMessage& message) {
  if (message.has_hello()) answers_.hello = message.hello();
  if (message.has_draining()) answers_.draining = true;
  if (message.has_pong()) ++answers_.num_pongs;
  if (message.has_tokens()) NoteTokens(message.tokens());
  if (message.has_accepted()) ++answers_.attempts[message.accepted().attempt()].accepted;
  if (message.has_refused()) {
    answers_.attempts[message.refused().attempt()].refused = message.refused();
  }
  if (message.has_finished()) {
    answers_.attempts[message.finished().attempt()].finished.push_back(message.finished());
  }
  if (message.has_load()) {
    ++answers_.num_loads;
    answers_.load = message.load();
  }
}

void RouterEnd::NoteTokens(const v1::Tokens& tokens) {
  ++answers_.num_token_messages;
  for (const v1::AttemptTokens& part : tokens.attempts()) {
    AttemptAnswers& attempt = answers_.attempts[part.attempt()];
    if (!attempt.first_index) attempt.first_index = part.first_index();
    const bool in_order = attempt.accepted == 1 && attempt.finished.empty() &&
                          part.first_index() == *attempt.first_index + attempt.tokens.size();
    if (!in_order) ++attempt.out_of_order;
    attempt.tokens.insert(attempt.tokens.end(), part.token_ids().begin(), part.token_ids().end());
  }
}

}  // namespace pdserve::testing
