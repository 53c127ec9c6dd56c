#include "router/fleet.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <limits>
#include <map>

#include "absl/strings/escaping.h"
#include "router/random.h"
#include "spdlog/spdlog.h"

namespace pdserve::router {

void Booking::Release() {
  if (fleet_ != nullptr) std::exchange(fleet_, nullptr)->AddWork(node_, work_, -1);
}

Fleet::Fleet(const RouterOptions& options, boost::asio::io_context& io, Metrics* metrics,
             const Clock* clock)
    : options_(options), metrics_(metrics), clock_(clock) {
  const uint64_t incarnation = RandomBits();
  for (uint32_t i = 0; i < options_.nodes.size(); ++i) {
    SessionOptions session;
    session.endpoint = options_.nodes[i];
    if (session.endpoint.address.empty()) session.endpoint.address = fmt::format("node{}", i);
    session.index = NodeIndex{i};
    session.router_id = fmt::format("router@{}", options_.listen);
    session.router_incarnation = incarnation;
    session.heartbeat_interval = options_.heartbeat_interval;
    session.peer_timeout = options_.peer_timeout;
    NodeState node;
    node.index = session.index;
    node.address = session.endpoint.address;
    state_.nodes.push_back(node);
    sessions_.push_back(std::make_shared<Session>(std::move(session), io, this, metrics_, clock_));
  }
  is_draining_.resize(sessions_.size());
  is_open_.resize(sessions_.size());
}

Fleet::~Fleet() { Close(); }

void Fleet::Open() {
  for (const auto& session : sessions_) session->Open();
}

void Fleet::Close() {
  for (const auto& session : sessions_) session->Close();
  text_thread_.join();
}

std::shared_ptr<const FleetSnapshot> Fleet::snapshot() {
  MutexLock lock(&mutex_);
  if (shown_ == nullptr) shown_ = std::make_shared<const FleetSnapshot>(state_);
  return shown_;
}

Booking Fleet::Book(NodeIndex node, NodeWork work) {
  AddWork(node, work, 1);
  return Booking(this, node, work);
}

void Fleet::AddWork(NodeIndex node, NodeWork work, int sign) {
  MutexLock lock(&mutex_);
  NodeWork& sum = state_.nodes[node.value].work;
  sum.prompt_tokens += sign * work.prompt_tokens;
  sum.decodes += sign * work.decodes;
  shown_ = nullptr;
}

void Fleet::OnHello(NodeIndex node, NodeFacts facts, std::string text_spec) {
  const std::string sha256 = facts.text_sha256;
  bool must_load = false;
  {
    MutexLock lock(&mutex_);
    NodeState& state = state_.nodes[node.value];
    state.facts = std::move(facts);
    spdlog::info("node {} ({}) at {}", state.facts.id, RoleOf(state), state.address);
    state.load = NodeLoad{};
    state.load.capacity_blocks = state.load.free_blocks = state.facts.capacity_blocks;
    is_open_[node.value] = true;
    is_draining_[node.value] = false;
    must_load = !texts_.contains(sha256);
    if (must_load) texts_[sha256] = LoadedText{};
    Refresh();
    ShowLoad(state);
  }
  if (!must_load) return;
  boost::asio::post(text_thread_,
                    [this, sha256, spec = std::move(text_spec)] { LoadText(sha256, spec); });
}

void Fleet::LoadText(const std::string& sha256, std::string_view spec) {
  const auto load = options_.load_text ? options_.load_text : &text::Text::Load;
  auto text = load(spec);
  MutexLock lock(&mutex_);
  LoadedText& loaded = texts_[sha256];
  loaded.is_done = true;
  if (text.ok()) {
    loaded.text = *std::move(text);
  } else {
    loaded.problem = "its tokenizer cannot be built: " + std::string(text.status().message());
    spdlog::error("{}", loaded.problem);
  }
  Refresh();
}

void Fleet::OnLoad(NodeIndex node, const NodeLoad& load) {
  MutexLock lock(&mutex_);
  NodeState& state = state_.nodes[node.value];
  state.load = load;
  shown_ = nullptr;
  ShowLoad(state);
}

void Fleet::OnDraining(NodeIndex node) {
  MutexLock lock(&mutex_);
  is_draining_[node.value] = true;
  Refresh();
}

void Fleet::OnLost(NodeIndex node, const std::string& why) {
  MutexLock lock(&mutex_);
  NodeState& state = state_.nodes[node.value];
  state.problem = why;
  is_open_[node.value] = false;
  is_draining_[node.value] = false;
  // A text that could not be built gets another chance with the next hello.
  const auto text = texts_.find(state.facts.text_sha256);
  if (text != texts_.end() && text->second.is_done && text->second.text == nullptr) {
    texts_.erase(text);
  }
  if (HasName(state)) {
    metrics_->RemoveNode(state.facts.id);
    metrics_->Set(Series::kNodeUp, {state.facts.id}, 0);
  }
  Refresh();
  const auto heir = named_.find(state.facts.id);
  if (heir != named_.end()) ShowLoad(state_.nodes[heir->second.value]);
}

std::string Fleet::KnownTextSha256() {
  MutexLock lock(&mutex_);
  for (const auto& [sha256, loaded] : texts_) {
    if (loaded.text != nullptr) return sha256;
  }
  return "";
}

void Fleet::NameNodes() {
  for (auto entry = named_.begin(); entry != named_.end();) {
    const auto current = entry++;
    const NodeIndex node = current->second;
    const bool is_kept =
        is_open_[node.value] && state_.nodes[node.value].facts.id == current->first;
    if (!is_kept) named_.erase(current);
  }
  for (const NodeState& node : state_.nodes) {
    if (is_open_[node.index.value]) named_.try_emplace(node.facts.id, node.index);
  }
}

bool Fleet::HasName(const NodeState& node) const {
  const auto named = named_.find(node.facts.id);
  return named != named_.end() && named->second == node.index;
}

bool Fleet::CouldServe(const NodeState& node) const {
  if (!is_open_[node.index.value] || !HasName(node)) return false;
  const auto loaded = texts_.find(node.facts.text_sha256);
  return loaded != texts_.end() && loaded->second.text != nullptr;
}

void Fleet::ChooseModel() {
  const NodeState* first = nullptr;
  for (const NodeState& node : state_.nodes) {
    if (!CouldServe(node)) continue;
    if (state_.model != nullptr && node.facts.fingerprint == state_.model->fingerprint) return;
    if (first == nullptr) first = &node;
  }
  if (first == nullptr) return;  // keeps the last one: its requests are told that no node is there
  const NodeFacts& facts = first->facts;
  ServedModel model;
  model.name = options_.model_name.empty() ? facts.model_name : options_.model_name;
  const std::string_view head(reinterpret_cast<const char*>(facts.fingerprint.value.data()), 6);
  model.system_fingerprint = "fp_" + absl::BytesToHexString({head.data(), head.size()});
  model.fingerprint = facts.fingerprint;
  model.text = texts_[facts.text_sha256].text;
  model.vocab_size = facts.vocab_size;
  model.end_tokens = facts.end_tokens;
  model.created = clock_->Now();
  spdlog::info("serving {} ({})", model.name, model.system_fingerprint);
  state_.model = std::make_shared<const ServedModel>(std::move(model));
}

NodeStage Fleet::StageOf(const NodeState& node) {
  if (!is_open_[node.index.value]) return NodeStage::kAbsent;
  if (!HasName(node)) return NodeStage::kUnusable;
  const LoadedText& loaded = texts_[node.facts.text_sha256];
  if (!loaded.is_done) return NodeStage::kLoadingText;
  if (loaded.text == nullptr) return NodeStage::kUnusable;
  if (node.facts.fingerprint != state_.model->fingerprint) return NodeStage::kMismatched;
  return is_draining_[node.index.value] ? NodeStage::kDraining : NodeStage::kReady;
}

std::string Fleet::ProblemOf(const NodeState& node, NodeStage stage) {
  if (stage == NodeStage::kMismatched) return "its model differs from the one that is served";
  if (stage != NodeStage::kUnusable) return "";
  if (HasName(node)) return texts_[node.facts.text_sha256].problem;
  const NodeState& first = state_.nodes[named_[node.facts.id].value];
  return fmt::format("the node at {} has the same --node_id", first.address);
}

void Fleet::ForgetUnusedTexts() {
  absl::flat_hash_set<std::string> used;
  for (const NodeState& node : state_.nodes) used.insert(node.facts.text_sha256);
  absl::erase_if(texts_, [&](const auto& entry) {
    return entry.second.is_done && !used.contains(entry.first);
  });
}

void Fleet::Refresh() {
  shown_ = nullptr;
  ForgetUnusedTexts();
  NameNodes();
  ChooseModel();
  int64_t context = std::numeric_limits<int64_t>::max();
  for (NodeState& node : state_.nodes) {
    const NodeStage stage = StageOf(node);
    if (stage != NodeStage::kAbsent) {
      std::string problem = ProblemOf(node, stage);
      if (!problem.empty() && problem != node.problem) {
        spdlog::warn("node {} at {}: {}", node.facts.id, node.address, problem);
      }
      node.problem = std::move(problem);
    }
    node.stage = stage;
    if (node.is_ready()) context = std::min<int64_t>(context, node.facts.max_context_tokens);
  }
  if (context != std::numeric_limits<int64_t>::max()) state_.max_context_tokens = context;
  ShowNodes();
}

// Two nodes of one id would overwrite each other's figures: shown is the one that has the name.
void Fleet::ShowLoad(const NodeState& node) {
  if (!HasName(node)) return;
  const std::string& id = node.facts.id;
  const NodeLoad& load = node.load;
  const auto set = [&](Series series, uint64_t value) {
    metrics_->Set(series, {id}, static_cast<double>(value));
  };
  set(Series::kNodeUp, 1);
  set(Series::kBlocksCapacity, load.capacity_blocks);
  metrics_->Set(Series::kBlocks, {id, "free"}, load.free_blocks);
  metrics_->Set(Series::kBlocks, {id, "cached"}, load.cached_blocks);
  metrics_->Set(Series::kBlocks, {id, "sequence"}, load.sequence_blocks);
  metrics_->Set(Series::kBlocks, {id, "transfer"}, load.transfer_blocks);
  metrics_->Set(Series::kNodeAttempts, {id, "waiting"}, load.waiting);
  metrics_->Set(Series::kNodeAttempts, {id, "prefilling"}, load.prefilling);
  metrics_->Set(Series::kNodeAttempts, {id, "transferring"}, load.transferring);
  metrics_->Set(Series::kNodeAttempts, {id, "decoding"}, load.decoding);
  set(Series::kQueuedTokens, load.queued_tokens);
  set(Series::kPreemptions, load.preemptions);
  set(Series::kPrefilledTokens, load.prefilled_tokens);
  set(Series::kGeneratedTokens, load.generated_tokens);
  set(Series::kTransferBytes, load.transfer_bytes);
}

void Fleet::ShowNodes() {
  std::map<std::pair<std::string, std::string>, int> counts;
  for (const char* role : {"prefill", "decode", "both", "unknown"}) {
    for (const NodeStage stage :
         {NodeStage::kAbsent, NodeStage::kLoadingText, NodeStage::kUnusable, NodeStage::kMismatched,
          NodeStage::kDraining, NodeStage::kReady}) {
      counts[{role, StageName(stage)}] = 0;
    }
  }
  for (const NodeState& node : state_.nodes) ++counts[{RoleOf(node), StageName(node.stage)}];
  for (const auto& [labels, count] : counts) {
    metrics_->Set(Series::kNodes, {labels.first, labels.second}, count);
  }
}

std::string RoleOf(const NodeState& node) {
  if (node.facts.prefills && node.facts.decodes) return "both";
  if (node.facts.prefills) return "prefill";
  return node.facts.decodes ? "decode" : "unknown";
}

std::string StageName(NodeStage stage) {
  switch (stage) {
    case NodeStage::kAbsent:
      return "absent";
    case NodeStage::kLoadingText:
      return "loading";
    case NodeStage::kUnusable:
      return "unusable";
    case NodeStage::kMismatched:
      return "mismatched";
    case NodeStage::kDraining:
      return "draining";
    case NodeStage::kReady:
      return "ready";
  }
  return "unknown";
}

std::vector<std::string> MissingRoles(const FleetSnapshot& snapshot) {
  bool has_prefill = false;
  bool has_decode = false;
  for (const NodeState& node : snapshot.nodes) {
    has_prefill = has_prefill || (node.is_ready() && node.facts.prefills);
    has_decode = has_decode || (node.is_ready() && node.facts.decodes);
  }
  std::vector<std::string> missing;
  if (!has_prefill) missing.push_back("prefill");
  if (!has_decode) missing.push_back("decode");
  return missing;
}

}  // namespace pdserve::router
