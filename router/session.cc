#include "router/session.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cstring>
#include <utility>

#include "common/message_limit.h"
#include "router/session_stream.h"
#include "spdlog/spdlog.h"

namespace pdserve::router {
namespace {

constexpr uint32_t kProtocolMajor = 1;
constexpr absl::Duration kFirstBackoff = absl::Milliseconds(50);
constexpr absl::Duration kLongestBackoff = absl::Seconds(1);
constexpr absl::Duration kLastWordWithin = absl::Seconds(1);

std::shared_ptr<grpc::Channel> ChannelTo(const NodeEndpoint& endpoint) {
  if (endpoint.channel != nullptr) return endpoint.channel;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kLargestMessageBytes);
  arguments.SetMaxSendMessageSize(kLargestMessageBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(endpoint.address, grpc::InsecureChannelCredentials(), arguments);
}

// Empty: a node of ours that keeps to the protocol.
std::string Complaint(const v1::NodeHello& hello) {
  if (!hello.refusal().empty()) return "it refuses: " + hello.refusal();
  if (hello.protocol_major() != kProtocolMajor) {
    return fmt::format("it speaks protocol {}, this router {}", hello.protocol_major(),
                       kProtocolMajor);
  }
  if (hello.node_id().empty()) return "its hello has no id";
  if (hello.fingerprint().size() != 32) return "its hello has no fingerprint";
  if (hello.vocab_size() == 0 || hello.max_context_tokens() == 0) return "its hello has no model";
  if (!hello.prefills() && !hello.decodes()) return "it has no role";
  return "";
}

NodeFacts FactsFrom(const v1::NodeHello& hello) {
  NodeFacts facts;
  facts.id = hello.node_id();
  facts.incarnation = Incarnation{hello.incarnation()};
  facts.prefills = hello.prefills();
  facts.decodes = hello.decodes();
  std::memcpy(facts.fingerprint.value.data(), hello.fingerprint().data(),
              facts.fingerprint.value.size());
  facts.transfer_address = hello.transfer_address();
  facts.model_name = hello.model_name();
  facts.vocab_size = hello.vocab_size();
  facts.max_context_tokens = hello.max_context_tokens();
  facts.block_tokens = hello.block_tokens();
  facts.capacity_blocks = hello.capacity_blocks();
  facts.text_sha256 = hello.text_sha256();
  for (const uint32_t id : hello.end_token_ids()) facts.end_tokens.push_back(TokenId{id});
  std::sort(facts.end_tokens.begin(), facts.end_tokens.end());
  return facts;
}

NodeLoad LoadFrom(const v1::Load& load) {
  return {.capacity_blocks = load.capacity_blocks(),
          .free_blocks = load.free_blocks(),
          .cached_blocks = load.cached_blocks(),
          .sequence_blocks = load.sequence_blocks(),
          .transfer_blocks = load.transfer_blocks(),
          .waiting = load.waiting(),
          .prefilling = load.prefilling(),
          .transferring = load.transferring(),
          .decoding = load.decoding(),
          .queued_tokens = load.queued_tokens(),
          .preemptions = load.preemptions(),
          .prefilled_tokens = load.prefilled_tokens(),
          .generated_tokens = load.generated_tokens(),
          .transfer_bytes = load.transfer_bytes()};
}

LegEnd LegEndFrom(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_STOP:
      return LegEnd::kStop;
    case v1::FINISH_LENGTH:
      return LegEnd::kLength;
    case v1::FINISH_CANCELLED:
      return LegEnd::kCancelled;
    case v1::FINISH_HANDED_OVER:
      return LegEnd::kHandedOver;
    default:
      return LegEnd::kFailed;
  }
}

LegFinished FinishedFrom(const v1::Finished& finished) {
  LegFinished leg;
  leg.end = LegEndFrom(finished.reason());
  leg.error = finished.error();
  leg.output_tokens = finished.output_tokens();
  leg.cached_tokens = finished.cached_tokens();
  const v1::PhaseTimes& times = finished.times();
  leg.times = {absl::Microseconds(times.queue_us()), absl::Microseconds(times.prefill_us()),
               absl::Microseconds(times.transfer_us()), absl::Microseconds(times.decode_queue_us()),
               absl::Microseconds(times.decode_us())};
  return leg;
}

LegRefused RefusedFrom(const v1::Refused& refused) {
  return {refused.reason(), refused.retryable(), absl::Milliseconds(refused.retry_after_ms())};
}

TokensArrived TokensFrom(const v1::AttemptTokens& tokens) {
  TokensArrived arrived;
  arrived.first_index = tokens.first_index();
  arrived.tokens.reserve(tokens.token_ids_size());
  for (const uint32_t id : tokens.token_ids()) arrived.tokens.push_back(TokenId{id});
  return arrived;
}

}  // namespace

Session::Session(SessionOptions options, boost::asio::io_context& io, SessionListener* listener,
                 Metrics* metrics, const Clock* clock)
    : options_(std::move(options)),
      io_(io),
      listener_(listener),
      metrics_(metrics),
      clock_(clock),
      stub_(v1::Node::NewStub(ChannelTo(options_.endpoint))),
      timer_(std::make_unique<boost::asio::steady_timer>(io)),
      backoff_(kFirstBackoff) {}

Session::~Session() = default;

void Session::Open() {
  MutexLock lock(&mutex_);
  ScheduleTick(absl::ZeroDuration());
}

void Session::Close() {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(&mutex_);
    is_closing_ = true;
    timer_.reset();
    stream = stream_;
  }
  if (stream != nullptr) stream->Cancel();
  stream.reset();
  MutexLock lock(&mutex_);
  for (LastWait wait; open_streams_ > 0 || ticks_running_ > 0;) wait.For(closed_, mutex_);
}

// Whoever lets go of a stream last, it ends on a thread of ours: it may hold the last reference to
// the channel, and gRPC must not be torn down by a thread of its own.
std::shared_ptr<Session::Stream> Session::NewStream() {
  {
    MutexLock lock(&mutex_);
    ++open_streams_;
  }
  return {new Stream(shared_from_this()), [this](Stream* stream) {
            boost::asio::post(io_, [stream] {
              const std::shared_ptr<Session> session = stream->session();
              delete stream;
              session->OnStreamGone();
            });
          }};
}

void Session::Dial() {
  const auto stream = NewStream();
  v1::RouterMessage hello;
  hello.mutable_hello()->set_protocol_major(kProtocolMajor);
  hello.mutable_hello()->set_router_id(options_.router_id);
  hello.mutable_hello()->set_incarnation(options_.router_incarnation);
  hello.mutable_hello()->set_known_text_sha256(listener_->KnownTextSha256());
  {
    MutexLock lock(&mutex_);
    if (is_closing_ || stream_ != nullptr) return;
    stream_ = stream;
    last_heard_ = clock_->Now();
  }
  stream->Begin(*stub_, std::move(hello));
}

bool Session::IsCurrent(const Stream* stream) {
  MutexLock lock(&mutex_);
  return stream_.get() == stream;
}

void Session::OnMessage(const Stream* stream, v1::NodeMessage& message) {
  {
    MutexLock lock(&mutex_);
    if (stream_.get() != stream) return;
    last_heard_ = clock_->Now();
    if (!is_up_ && message.kind_case() != v1::NodeMessage::kHello) return;
  }
  switch (message.kind_case()) {
    case v1::NodeMessage::kHello:
      return OnHello(stream, *message.mutable_hello());
    case v1::NodeMessage::kTokens:
      return OnTokens(message.tokens());
    case v1::NodeMessage::kFinished:
      return OnLegEnd({AttemptId{message.finished().attempt()}, options_.index,
                       FinishedFrom(message.finished())});
    case v1::NodeMessage::kRefused:
      return OnLegEnd(
          {AttemptId{message.refused().attempt()}, options_.index, RefusedFrom(message.refused())});
    case v1::NodeMessage::kLoad: {
      MutexLock lock(&listener_mutex_);
      if (IsCurrent(stream)) listener_->OnLoad(options_.index, LoadFrom(message.load()));
      return;
    }
    case v1::NodeMessage::kDraining: {
      MutexLock lock(&listener_mutex_);
      if (IsCurrent(stream)) listener_->OnDraining(options_.index);
      return;
    }
    default:  // accepted, pong: that something came is all there is to know
      return;
  }
}

void Session::OnHello(const Stream* stream, v1::NodeHello& hello) {
  if (const std::string complaint = Complaint(hello); !complaint.empty()) {
    return Lose(stream, complaint);
  }
  MutexLock listener_lock(&listener_mutex_);
  {
    MutexLock lock(&mutex_);
    if (stream_.get() != stream || is_up_) return;
    is_up_ = true;
    backoff_ = kFirstBackoff;
    last_problem_.clear();
  }
  listener_->OnHello(options_.index, FactsFrom(hello), std::move(*hello.mutable_text_spec()));
}

void Session::OnTokens(const v1::Tokens& tokens) {
  std::vector<std::pair<std::shared_ptr<AttemptSink>, const v1::AttemptTokens*>> receivers;
  receivers.reserve(tokens.attempts_size());
  {
    MutexLock lock(&mutex_);
    for (const v1::AttemptTokens& attempt : tokens.attempts()) {
      const auto leg = legs_.find(AttemptId{attempt.attempt()});
      if (leg != legs_.end() && leg->second.sink != nullptr) {
        receivers.emplace_back(leg->second.sink, &attempt);
      }
    }
  }
  for (const auto& [sink, attempt] : receivers) {
    sink->OnNodeEvent({AttemptId{attempt->attempt()}, options_.index, TokensFrom(*attempt)});
  }
}

void Session::OnLegEnd(NodeEvent event) {
  std::shared_ptr<AttemptSink> sink;
  {
    MutexLock lock(&mutex_);
    const auto leg = legs_.find(event.attempt);
    if (leg == legs_.end()) return;
    sink = std::move(leg->second.sink);
    legs_.erase(leg);
  }
  if (sink != nullptr) sink->OnNodeEvent(std::move(event));
}

void Session::OnStreamGone() {
  MutexLock lock(&mutex_);
  --open_streams_;
  closed_.NotifyAll();
}

void Session::Lose(const Stream* stream, const std::string& why) {
  std::shared_ptr<Stream> lost;
  absl::flat_hash_map<AttemptId, Leg> legs;
  {
    MutexLock listener_lock(&listener_mutex_);
    {
      MutexLock lock(&mutex_);
      if (stream_.get() != stream) return;
      lost = std::move(stream_);
      stream_ = nullptr;
      is_up_ = false;
      legs.swap(legs_);
      if (last_problem_ != why && !is_closing_) {
        spdlog::warn("node {}: no session: {}", options_.endpoint.address, why);
      }
      last_problem_ = why;
      ScheduleTick(backoff_);
      backoff_ = std::min(backoff_ * 2, kLongestBackoff);
    }
    listener_->OnLost(options_.index, why);
  }
  lost->Cancel();
  for (auto& [attempt, leg] : legs) {
    if (leg.sink != nullptr) leg.sink->OnNodeEvent({attempt, options_.index, LegLost{}});
  }
}

bool Session::StartPrefill(v1::PrefillRequest request, std::shared_ptr<AttemptSink> sink) {
  const AttemptId attempt{request.attempt()};
  v1::RouterMessage message;
  *message.mutable_prefill() = std::move(request);
  return Start(attempt, std::move(message), std::move(sink));
}

bool Session::StartDecode(v1::DecodeRequest request, std::shared_ptr<AttemptSink> sink) {
  const AttemptId attempt{request.attempt()};
  v1::RouterMessage message;
  *message.mutable_decode() = std::move(request);
  return Start(attempt, std::move(message), std::move(sink));
}

bool Session::Start(AttemptId attempt, v1::RouterMessage message,
                    std::shared_ptr<AttemptSink> sink) {
  MutexLock lock(&mutex_);
  if (!is_up_ || !stream_->HasRoom()) return false;
  legs_[attempt] = Leg{std::move(sink), absl::InfiniteFuture(), false};
  stream_->Send(std::move(message));
  return true;
}

void Session::LetGo(AttemptId attempt, bool is_over) {
  MutexLock lock(&mutex_);
  const auto leg = legs_.find(attempt);
  if (leg == legs_.end()) return;
  leg->second.sink = nullptr;
  leg->second.overdue = clock_->Now() + kLastWordWithin;
  if (!is_over) {
    leg->second.is_cancelled = true;
    SendCancel(attempt);
  }
}

// At most one for each attempt that was sent, so the queue stays bounded by them.
void Session::SendCancel(AttemptId attempt) {
  if (stream_ == nullptr) return;
  v1::RouterMessage message;
  message.mutable_cancel()->set_attempt(attempt.value);
  stream_->Send(std::move(message));
}

void Session::ScheduleTick(absl::Duration delay) {
  if (is_closing_) return;
  timer_->expires_after(absl::ToChronoNanoseconds(delay));
  timer_->async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    if (error) return;
    if (const auto session = weak.lock()) session->Tick();
  });
}

void Session::Tick() {
  std::shared_ptr<Stream> silent;
  bool has_stream = false;
  {
    MutexLock lock(&mutex_);
    if (is_closing_) return;
    ++ticks_running_;
    const absl::Time now = clock_->Now();
    SweepLate(now);
    has_stream = stream_ != nullptr;
    if (has_stream && now - last_heard_ > options_.peer_timeout) silent = stream_;
    if (is_up_ && silent == nullptr) {
      v1::RouterMessage ping;
      ping.mutable_ping()->set_sequence(++pings_);
      stream_->Send(std::move(ping));
    }
    // Losing a stream schedules the next tick itself.
    if (silent == nullptr) ScheduleTick(options_.heartbeat_interval);
  }
  if (silent != nullptr) Lose(silent.get(), "it is silent");
  if (!has_stream) Dial();
  MutexLock lock(&mutex_);
  --ticks_running_;
  closed_.NotifyAll();
}

void Session::SweepLate(absl::Time now) {
  for (auto leg = legs_.begin(); leg != legs_.end();) {
    const auto current = leg++;
    if (current->second.sink != nullptr || current->second.overdue > now) continue;
    if (current->second.is_cancelled) {
      metrics_->Add(Series::kLateCancels, {}, 1);
      legs_.erase(current);
      continue;
    }
    current->second.is_cancelled = true;
    current->second.overdue = now + kLastWordWithin;
    SendCancel(current->first);
  }
}

}  // namespace pdserve::router
