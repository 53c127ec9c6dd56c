// The nodes known to the router: their sessions, what they last said, and the model they serve.
// Gives out immutable snapshots. Thread-safe; a thread of its own builds tokenizers.
// Served is one fingerprint at a time: that of the first node to be ready; another one only once no
// node of it is left. Nodes of others are named in the log and are not ready.
#ifndef PDSERVE_ROUTER_FLEET_H_
#define PDSERVE_ROUTER_FLEET_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "router/fleet_snapshot.h"
#include "router/session.h"

namespace pdserve::router {

class Fleet;

/// Work given to a node, counted while this lives. Movable; any thread.
class Booking {
 public:
  Booking() = default;
  Booking(Fleet* fleet, NodeIndex node, NodeWork work) : fleet_(fleet), node_(node), work_(work) {}
  Booking(Booking&& other) noexcept { Swap(other); }
  Booking& operator=(Booking&& other) noexcept {
    Swap(other);
    return *this;
  }
  ~Booking() { Release(); }
  void Release();

 private:
  void Swap(Booking& other) {
    std::swap(fleet_, other.fleet_);
    std::swap(node_, other.node_);
    std::swap(work_, other.work_);
  }
  Fleet* fleet_ = nullptr;
  NodeIndex node_;
  NodeWork work_;
};

class Fleet final : public SessionListener {
 public:
  Fleet(const RouterOptions& options, boost::asio::io_context& io, Metrics* metrics,
        const Clock* clock);
  ~Fleet() override;

  void Open();
  /// Ends every session; nothing is called back after it.
  void Close();

  std::shared_ptr<const FleetSnapshot> snapshot();
  Session& session(NodeIndex node) { return *sessions_[node.value]; }
  /// Counts the work from here on until the booking is gone.
  Booking Book(NodeIndex node, NodeWork work);

  void OnHello(NodeIndex node, NodeFacts facts, std::string text_spec) override;
  void OnLoad(NodeIndex node, const NodeLoad& load) override;
  void OnDraining(NodeIndex node) override;
  void OnLost(NodeIndex node, const std::string& why) override;
  std::string KnownTextSha256() override;

 private:
  friend class Booking;
  struct LoadedText {
    std::shared_ptr<const text::Text> text;  // null: `problem` says why
    std::string problem;
    bool is_done = false;
  };

  void LoadText(const std::string& sha256, std::string_view spec);
  void AddWork(NodeIndex node, NodeWork work, int sign);
  /// Works out every node's stage and the served model after a change.
  void Refresh() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  NodeStage StageOf(const NodeState& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ChooseModel() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool CouldServe(const NodeState& node) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Each id is one open node's: that of the first, until it goes.
  void NameNodes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasName(const NodeState& node) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string ProblemOf(const NodeState& node, NodeStage stage)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ShowLoad(const NodeState& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetUnusedTexts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ShowNodes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RouterOptions options_;
  Metrics* const metrics_;
  const Clock* const clock_;
  std::vector<std::shared_ptr<Session>> sessions_;  // fixed after construction
  boost::asio::thread_pool text_thread_{1};

  Mutex mutex_;
  FleetSnapshot state_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> is_draining_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> is_open_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, NodeIndex> named_ ABSL_GUARDED_BY(mutex_);   // by node id
  absl::flat_hash_map<std::string, LoadedText> texts_ ABSL_GUARDED_BY(mutex_);  // by SHA-256
  std::shared_ptr<const FleetSnapshot> shown_ ABSL_GUARDED_BY(mutex_);          // null: out of date
};

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_FLEET_H_
