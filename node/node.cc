#include "node/node.h"

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <openssl/sha.h>
#include <sys/socket.h>

#include <algorithm>
#include <future>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/message_limit.h"
#include "common/status_macros.h"
#include "node/desk.h"
#include "node/session.h"
#include "spdlog/spdlog.h"

namespace pdserve::node {
namespace {

uint64_t RandomIncarnation() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;  // 0 means any
}

std::string Sha256(const std::string& text) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

/// Composes the parts. Order of their ends: sessions, attempts, pump, loop.
class ComposedNode final : public Node, public Inbox, public kvtransfer::PumpEvents {
 public:
  ComposedNode(const NodeOptions& options, std::shared_ptr<engine::Model> model, Metrics* metrics,
               const Clock* clock)
      : options_(options),
        model_(std::move(model)),
        metrics_(metrics),
        clock_(clock),
        desk_({.node_id = options.node_id, .max_attempts = options.max_attempts}) {}
  ~ComposedNode() override;

  absl::Status Init();

  std::string session_address() const override { return session_address_; }
  std::shared_ptr<grpc::Channel> InProcessChannel() override;
  bool Drain(absl::Duration timeout) override;

  void Opened(SessionId session) override;
  bool Begin(prefill::Request request) override;
  bool Begin(decode::Request request) override;
  void Cancel(engine::AttemptKey key, std::function<void()> done) override;
  void Lost(SessionId session) override;

  void OnOfferFetched(Ticket ticket) override;
  void OnOfferEnded(Ticket ticket, absl::Status status,
                    const kvtransfer::TransferStats& stats) override;
  void OnFetchEnded(Ticket ticket, absl::StatusOr<kvtransfer::CommitRecord> commit,
                    const kvtransfer::TransferStats& stats) override;

 private:
  absl::Status StartPump();
  void MakeRoles();
  SessionOptions MakeSessionOptions() const;
  absl::Status StartServer();
  void InitSeries();
  int32_t max_context_tokens() const;
  int32_t pool_tokens() const;

  const NodeOptions options_;
  const std::shared_ptr<engine::Model> model_;
  Metrics* const metrics_;
  const Clock* const clock_;
  Desk desk_;
  std::unique_ptr<engine::BlockPool> pool_;
  kvtransfer::PumpOptions pump_options_;
  std::unique_ptr<kvtransfer::Pump> pump_;
  std::unique_ptr<decode::Role> decode_;
  std::unique_ptr<prefill::Role> prefill_;
  std::unique_ptr<engine::StepLoop> loop_;
  std::unique_ptr<SessionService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::string session_address_;
};

ComposedNode::~ComposedNode() {
  if (service_) service_->Close();
  if (server_) server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  if (loop_) {
    // No attempt may reach for the pump while it goes; its last events still find the loop.
    std::promise<void> cancelled;
    const bool posted = loop_->PostReserved([&] {
      desk_.Drain();
      desk_.CancelAll();
      cancelled.set_value();
    });
    auto done = cancelled.get_future();
    // As LastWait has it: a loop that takes no call for a minute is stuck.
    for (int seconds = 0;
         posted && done.wait_for(std::chrono::seconds(1)) != std::future_status::ready;) {
      PD_CHECK(++seconds < 60);
    }
  }
  pump_.reset();
  if (loop_) loop_->Stop();
}

int32_t ComposedNode::pool_tokens() const {
  const int64_t tokens = int64_t{pool_->capacity()} * model_->card().cache_layout.block_tokens;
  return static_cast<int32_t>(std::min<int64_t>(tokens, std::numeric_limits<int32_t>::max()));
}

int32_t ComposedNode::max_context_tokens() const {
  return std::min(model_->card().max_context_tokens, pool_tokens());
}

absl::Status ComposedNode::Init() {
  if (!options_.prefills && !options_.decodes) {
    return absl::InvalidArgumentError("a node prefills, decodes, or does both");
  }
  const engine::CacheLayout& layout = model_->card().cache_layout;
  ASSIGN_OR_RETURN(pool_, engine::BlockPool::Create(
                              layout.block_bytes(), static_cast<size_t>(options_.kv_pool_bytes),
                              options_.prefix_cache ? layout.block_tokens : 0));
  RETURN_IF_ERROR(StartPump());
  MakeRoles();
  std::vector<engine::StepClient*> clients;
  if (decode_) clients.push_back(decode_.get());
  if (prefill_) clients.push_back(prefill_.get());
  clients.push_back(&desk_);
  engine::StepLoopOptions loop = options_.step_loop;
  // Each request in the mailbox may be as long as the context: no more of them than are of use.
  loop.mailbox_limit =
      std::min<size_t>(loop.mailbox_limit, std::max(4 * options_.max_attempts, 1024));
  loop_ = std::make_unique<engine::StepLoop>(loop, model_.get(), pool_.get(), std::move(clients),
                                             clock_);
  service_ = std::make_unique<SessionService>(MakeSessionOptions(), this, clock_);
  desk_.Connect({pool_.get(), prefill_.get(), decode_.get(), service_.get(), metrics_, clock_});
  InitSeries();
  loop_->Start();
  RETURN_IF_ERROR(StartServer());
  spdlog::info("node {}: {} cache blocks of {} bytes, sessions at {}, transfers at {} ({})",
               options_.node_id, pool_->capacity(), pool_->block_bytes(),
               session_address_.empty() ? "no address" : session_address_, pump_->address(),
               pump_options_.transport);
  return absl::OkStatus();
}

absl::Status ComposedNode::StartPump() {
  const engine::ModelCard& card = model_->card();
  pump_options_ = options_.pump;
  pump_options_.node_id = options_.node_id;
  pump_options_.incarnation = Incarnation{RandomIncarnation()};
  pump_options_.fingerprint = card.fingerprint;
  pump_options_.block_bytes = static_cast<uint32_t>(card.cache_layout.block_bytes());
  pump_options_.block_tokens = static_cast<uint32_t>(card.cache_layout.block_tokens);
  pump_options_.max_hand_overs = 2 * int64_t{options_.max_attempts};
  ASSIGN_OR_RETURN(pump_, kvtransfer::Pump::Start(pump_options_, this, clock_));
  return absl::OkStatus();
}

void ComposedNode::MakeRoles() {
  const engine::ModelCard& card = model_->card();
  const engine::GenerationLimits limits{card.vocab_size, card.max_context_tokens, pool_tokens()};
  const int32_t block_tokens = card.cache_layout.block_tokens;
  const int32_t capacity = pool_->capacity();
  if (options_.decodes) {
    decode::RoleOptions decode{
        .limits = limits, .end_tokens = card.end_tokens, .block_tokens = block_tokens};
    // Decode rows must not use the whole budget up, else prompts on the same node would starve.
    decode.max_batch =
        std::min(options_.max_batch, std::max(options_.step_loop.max_step_tokens * 3 / 4, 1));
    if (options_.prefills) decode.max_landing_blocks = capacity / 2;
    decode_ = std::make_unique<decode::Role>(std::move(decode), pool_.get(), pump_.get(), &desk_);
  }
  if (!options_.prefills) return;
  prefill::RoleOptions prefill{limits, card.end_tokens, block_tokens, nullptr,
                               options_.decodes ? capacity / 4 : capacity / 2};
  if (decode_) {
    prefill.to_decode = [this](engine::Sequence sequence, const engine::PhaseTimes& times) {
      decode_->Adopt(std::move(sequence), times, clock_->Now());
    };
  }
  prefill_ = std::make_unique<prefill::Role>(std::move(prefill), pool_.get(), pump_.get(), &desk_);
}

SessionOptions ComposedNode::MakeSessionOptions() const {
  const engine::ModelCard& card = model_->card();
  SessionOptions options;
  options.peer_timeout = options_.peer_timeout;
  options.max_open_cancels = std::max(options_.max_attempts, 1024) * 2;
  v1::NodeHello& hello = options.hello;
  hello.set_protocol_major(kProtocolMajor);
  hello.set_protocol_minor(kProtocolMinor);
  hello.set_node_id(options_.node_id);
  hello.set_incarnation(pump_options_.incarnation.value);
  hello.set_prefills(options_.prefills);
  hello.set_decodes(options_.decodes);
  hello.set_fingerprint(card.fingerprint.value.data(), card.fingerprint.value.size());
  hello.set_transfer_address(pump_->address());
  hello.set_model_name(options_.model_name.empty() ? card.name : options_.model_name);
  hello.set_vocab_size(static_cast<uint32_t>(card.vocab_size));
  hello.set_max_context_tokens(static_cast<uint32_t>(max_context_tokens()));
  hello.set_block_tokens(static_cast<uint32_t>(card.cache_layout.block_tokens));
  hello.set_capacity_blocks(static_cast<uint32_t>(pool_->capacity()));
  for (const TokenId id : card.end_tokens) hello.add_end_token_ids(id.value);
  hello.set_text_spec(card.text_spec);
  hello.set_text_sha256(Sha256(card.text_spec));
  return options;
}

void ComposedNode::InitSeries() {
  const std::string_view node = options_.node_id;
  metrics_->Set(Series::kTransportInfo, {node, pump_options_.transport}, 1);
  metrics_->Add(Series::kPoolFaults, {node}, 0);
  for (const char* outcome : {"ok", "cancelled", "expired", "failed"}) {
    if (options_.prefills) metrics_->Add(Series::kOffersEnded, {node, outcome}, 0);
    if (options_.decodes) metrics_->Add(Series::kFetchesEnded, {node, outcome}, 0);
  }
  for (const Series series : {Series::kPrefixQueries, Series::kPrefixHits}) {
    if (options_.prefills) metrics_->Add(series, {node, "prefill"}, 0);
    if (options_.decodes) metrics_->Add(series, {node, "decode"}, 0);
  }
}

absl::Status ComposedNode::StartServer() {
  grpc::ServerBuilder builder;
  builder.RegisterService(service_.get());
  builder.SetMaxReceiveMessageSize(kLargestMessageBytes);
  builder.SetMaxSendMessageSize(kLargestMessageBytes);
  // Two processes on one port would each get some of the connections: refuse the second.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  int port = 0;
  if (!options_.listen.empty()) {
    builder.AddListeningPort(options_.listen, grpc::InsecureServerCredentials(), &port);
  }
  server_ = builder.BuildAndStart();
  if (!server_ || (!options_.listen.empty() && port == 0)) {
    return absl::UnavailableError(
        absl::StrCat("can't listen on ", options_.listen, " for sessions"));
  }
  if (!options_.listen.empty()) {
    session_address_ =
        absl::StrCat(options_.listen.substr(0, options_.listen.rfind(':')), ":", port);
  }
  return absl::OkStatus();
}

// A socket pair, and not gRPC's own in-process transport: with the callback API that one loses a
// message's completion now and then (seen with 1.51: the stream stands still for ever).
std::shared_ptr<grpc::Channel> ComposedNode::InProcessChannel() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) return nullptr;
  grpc::AddInsecureChannelFromFd(server_.get(), ends[0]);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kLargestMessageBytes);
  arguments.SetMaxSendMessageSize(kLargestMessageBytes);
  return grpc::CreateCustomInsecureChannelFromFd(options_.node_id, ends[1], arguments);
}

bool ComposedNode::Drain(absl::Duration timeout) {
  const absl::Time end = clock_->Now() + timeout;
  if (!loop_->PostReserved([this] { desk_.Drain(); })) return false;
  if (!desk_.WaitUntilDrained(timeout)) return false;
  return service_->WaitUntilSent(end - clock_->Now());
}

void ComposedNode::Opened(SessionId session) {
  loop_->PostReserved([this, session] { desk_.Opened(session); });  // bound: sessions
}

bool ComposedNode::Begin(prefill::Request request) {
  return loop_->Post([this, request = std::move(request)] { desk_.Begin(request); });
}

bool ComposedNode::Begin(decode::Request request) {
  return loop_->Post([this, request = std::move(request)] { desk_.Begin(request); });
}

void ComposedNode::Cancel(engine::AttemptKey key, std::function<void()> done) {
  loop_->PostReserved([this, key, done = std::move(done)] {  // bound: a session's open cancels
    desk_.Cancel(key);
    done();
  });
}

void ComposedNode::Lost(SessionId session) {
  loop_->PostReserved([this, session] { desk_.Lost(session); });  // bound: sessions
}

void ComposedNode::OnOfferFetched(Ticket ticket) {
  loop_->PostReserved([this, ticket] { desk_.OnOfferFetched(ticket); });  // bound: open offers
}

void ComposedNode::OnOfferEnded(Ticket ticket, absl::Status status,
                                const kvtransfer::TransferStats& stats) {
  loop_->PostReserved([this, ticket, status = std::move(status), stats] {  // bound: open offers
    desk_.OnOfferEnded(ticket, status, stats);
  });
}

void ComposedNode::OnFetchEnded(Ticket ticket, absl::StatusOr<kvtransfer::CommitRecord> commit,
                                const kvtransfer::TransferStats& stats) {
  loop_->PostReserved([this, ticket, commit = std::move(commit), stats] {  // bound: open fetches
    desk_.OnFetchEnded(ticket, commit, stats);
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Node>> Node::Start(const NodeOptions& options,
                                                  std::shared_ptr<engine::Model> model,
                                                  Metrics* metrics, const Clock* clock) {
  auto node = std::make_unique<ComposedNode>(options, std::move(model), metrics, clock);
  RETURN_IF_ERROR(node->Init());
  return std::unique_ptr<Node>(std::move(node));
}

}  // namespace pdserve::node
