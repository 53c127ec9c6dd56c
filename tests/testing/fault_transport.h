// A transport that wraps another one and goes wrong by seed: messages vanish, wait, come twice,
// links stall or are cut, bytes of payloads change. Links hold up independently, so what was sent
// first on one may arrive after what was sent later on another; within a link the order stays. With
// nothing but `delay` it keeps every promise of transport.h. Thread: as the wrapped one.
#ifndef PDSERVE_TESTS_TESTING_FAULT_TRANSPORT_H_
#define PDSERVE_TESTS_TESTING_FAULT_TRANSPORT_H_

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvtransfer/transport.h"

namespace pdserve::testing {

/// Chances per message sent; `corrupt` per payload received.
struct FaultPlan {
  uint64_t seed = 0;
  double drop = 0;
  double duplicate = 0;
  double delay = 0;  // by a few polls
  double stall = 0;  // of the link, for good
  double cut = 0;    // of the link
  double corrupt = 0;
  uint64_t spared = 0;  // messages at the start of each link that go through untouched
};

class FaultTransport final : public kvtransfer::Transport, private kvtransfer::TransportEvents {
 public:
  using LinkId = kvtransfer::LinkId;
  using OpId = kvtransfer::OpId;

  FaultTransport(std::unique_ptr<kvtransfer::Transport> inner, const FaultPlan& plan)
      : inner_(std::move(inner)), plan_(plan), random_(plan.seed) {}

  absl::StatusOr<std::string> Listen(const std::string& address) override {
    return inner_->Listen(address);
  }
  LinkId Connect(const std::string& address) override { return inner_->Connect(address); }

  void Send(LinkId link, kvtransfer::Message message) override {
    if (dying_.contains(link)) {
      ended_.push_back({link, message.op, absl::UnavailableError("the link is closing")});
      return;
    }
    if (sent_[link]++ < plan_.spared) return Forward(link, message, 1);
    if (Chance(plan_.cut)) inner_->Close(link, absl::UnavailableError("cut by the test"));
    if (Chance(plan_.stall)) stalled_.insert(link);
    if (Chance(plan_.drop)) {
      ended_.push_back({link, message.op, absl::OkStatus()});
      return;
    }
    const uint64_t until = Chance(plan_.delay) ? polls_ + 1 + random_() % 4 : 0;
    std::deque<Held>& held = held_[link];
    if (until == 0 && held.empty() && !stalled_.contains(link)) {
      return Forward(link, message, Copies());
    }
    held.push_back({std::move(message), until});
  }

  void Abandon(LinkId link, OpId op) override { inner_->Abandon(link, op); }

  void Close(LinkId link, absl::Status reason) override {
    EndHeld(link);
    inner_->Close(link, std::move(reason));
  }

  void Poll(kvtransfer::TransportEvents* events, absl::Duration timeout) override {
    events_ = events;
    ++polls_;
    const bool busy = Release() || !ended_.empty();
    DeliverEnded();
    inner_->Poll(this, busy ? std::min(timeout, absl::Milliseconds(1)) : timeout);
    events_ = nullptr;
  }

  void Wake() override { inner_->Wake(); }

 private:
  struct Held {
    kvtransfer::Message message;
    uint64_t until = 0;  // a poll
  };
  struct Ended {
    LinkId link;
    OpId op;
    absl::Status status;
  };
  struct Forwarded {
    OpId op;
    int left = 0;
    absl::Status status;
  };

  bool Chance(double probability) {
    return probability > 0 && std::uniform_real_distribution<>(0, 1)(random_) < probability;
  }
  int Copies() { return Chance(plan_.duplicate) ? 2 : 1; }

  void Forward(LinkId link, const kvtransfer::Message& message, int copies) {
    const OpId first{next_op_};
    for (int i = 0; i < copies; ++i) owner_of_[OpId{next_op_++}] = first;
    copies_[first] = {message.op, copies, absl::OkStatus()};
    for (int i = 0; i < copies; ++i) {
      kvtransfer::Message copy = message;
      copy.op = OpId{first.value + i};
      inner_->Send(link, std::move(copy));
    }
  }

  // True while something waits for a later poll.
  bool Release() {
    bool waiting = false;
    for (auto& [link, held] : held_) {
      while (!held.empty() && held.front().until <= polls_ && !stalled_.contains(link)) {
        const kvtransfer::Message message = std::move(held.front().message);
        held.pop_front();
        Forward(link, message, Copies());
      }
      waiting |= !held.empty() && !stalled_.contains(link);
    }
    return waiting;
  }

  void EndHeld(LinkId link) {
    for (Held& held : held_[link]) {
      ended_.push_back({link, held.message.op, absl::UnavailableError("the link is closing")});
    }
    held_.erase(link);
  }

  void DeliverEnded() {
    std::vector<Ended> ended;
    ended.swap(ended_);
    for (const Ended& end : ended) events_->OnSent(end.link, end.op, end.status);
  }

  void OnAccepted(LinkId link, const std::string& peer) override {
    events_->OnAccepted(link, peer);
  }
  void OnConnected(LinkId link) override { events_->OnConnected(link); }
  kvtransfer::Destination OnMessage(LinkId link, std::string_view control,
                                    uint64_t payload_bytes) override {
    kvtransfer::Destination to = events_->OnMessage(link, control, payload_bytes);
    if (!to.parts.empty()) landing_[to.op] = to.parts.front();
    return to;
  }
  void OnProgress(LinkId link) override { events_->OnProgress(link); }
  void OnReceived(LinkId link, OpId op, absl::Status status) override {
    const std::span<std::byte> part = landing_[op];
    landing_.erase(op);
    if (status.ok() && Chance(plan_.corrupt)) part[random_() % part.size()] ^= std::byte{0x10};
    events_->OnReceived(link, op, std::move(status));
  }
  void OnSent(LinkId link, OpId op, absl::Status status) override {
    const OpId first = owner_of_[op];
    owner_of_.erase(op);
    Forwarded& copies = copies_[first];
    copies.status.Update(status);
    if (--copies.left > 0) return;
    const Forwarded done = copies;
    copies_.erase(first);
    events_->OnSent(link, done.op, done.status);
  }
  void OnClosed(LinkId link, absl::Status reason) override {
    dying_.insert(link);
    EndHeld(link);
    while (!ended_.empty()) DeliverEnded();
    dying_.erase(link);
    stalled_.erase(link);
    held_.erase(link);
    sent_.erase(link);
    events_->OnClosed(link, std::move(reason));
  }

  const std::unique_ptr<kvtransfer::Transport> inner_;
  const FaultPlan plan_;
  std::mt19937_64 random_;
  kvtransfer::TransportEvents* events_ = nullptr;
  uint64_t polls_ = 0;
  uint64_t next_op_ = 1;
  std::map<LinkId, uint64_t> sent_;
  std::map<LinkId, std::deque<Held>> held_;
  std::set<LinkId> stalled_;
  std::set<LinkId> dying_;  // gone below, not yet reported above
  std::vector<Ended> ended_;
  std::map<OpId, OpId> owner_of_;  // inner operation > first of its copies
  std::map<OpId, Forwarded> copies_;
  std::map<OpId, std::span<std::byte>> landing_;
};

}  // namespace pdserve::testing

#endif  // PDSERVE_TESTS_TESTING_FAULT_TRANSPORT_H_
