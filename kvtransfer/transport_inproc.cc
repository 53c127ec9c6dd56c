// Two pumps of one process: the receiver copies out of the sender's memory into its own. A sender
// that closes takes back what lies in the peer's inbox and waits for a copy that runs.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "kvtransfer/inproc_hub.h"
#include "kvtransfer/transport.h"

namespace pdserve::kvtransfer {
namespace {

constexpr size_t kItemsPerPoll = 64;

using State = InprocMessage::State;
using Kind = InprocItem::Kind;

template <typename Byte>
uint64_t SizeOf(const std::vector<std::span<Byte>>& parts) {
  uint64_t bytes = 0;
  for (const auto& part : parts) bytes += part.size();
  return bytes;
}

void Copy(const std::vector<std::span<const std::byte>>& from,
          const std::vector<std::span<std::byte>>& to) {
  size_t source = 0;
  size_t at = 0;
  for (std::span<std::byte> rest : to) {
    while (!rest.empty()) {
      if (at == from[source].size()) {
        ++source;
        at = 0;
        continue;
      }
      const size_t step = std::min(rest.size(), from[source].size() - at);
      std::memcpy(rest.data(), from[source].data() + at, step);
      rest = rest.subspan(step);
      at += step;
    }
  }
}

class NoEvents final : public TransportEvents {
  void OnAccepted(LinkId, const std::string&) override {}
  void OnConnected(LinkId) override {}
  Destination OnMessage(LinkId, std::string_view, uint64_t) override { return {}; }
  void OnProgress(LinkId) override {}
  void OnReceived(LinkId, OpId, absl::Status) override {}
  void OnSent(LinkId, OpId, absl::Status) override {}
  void OnClosed(LinkId, absl::Status) override {}
};

class InprocTransport final : public Transport {
 public:
  explicit InprocTransport(const TransportOptions& options) : options_(options) {}

  ~InprocTransport() override {
    if (!address_.empty()) InprocHub::Get().Remove(address_);
    NoEvents none;
    while (!links_.empty()) {
      const LinkId link = links_.begin()->first;
      Close(link, absl::CancelledError("the transport was closed"));
      while (links_.contains(link)) Poll(&none, absl::Milliseconds(100));
    }
    for (InprocItem& item : inbox_->Shut()) {
      if (item.kind == Kind::kMessage) Refuse(item);
      if (item.kind == Kind::kDialled) {
        item.pipe->inbox[0]->Post({Kind::kPeerClosed, item.pipe, 0, nullptr,
                                   absl::UnavailableError("the peer has gone")});
      }
    }
  }

  absl::StatusOr<std::string> Listen(const std::string& address) override {
    auto name = InprocHub::Get().Add(address, inbox_);
    if (name.ok()) address_ = *name;
    return name;
  }

  LinkId Connect(const std::string& address) override {
    auto pipe = std::make_shared<InprocPipe>();
    pipe->inbox[0] = inbox_;
    pipe->inbox[1] = InprocHub::Get().Find(address);
    const LinkId id = AddLink(pipe, 0);
    if (pipe->inbox[1] == nullptr || !pipe->inbox[1]->Post({Kind::kDialled, pipe, 1})) {
      pipe->inbox[1] = nullptr;
      Close(id, absl::UnavailableError(absl::StrCat("nobody listens at ", address)));
    }
    return id;
  }

  void Send(LinkId id, Message message) override {
    const auto found = links_.find(id);
    if (found == links_.end()) return;
    Link& link = found->second;
    auto sent = std::make_shared<InprocMessage>();
    sent->payload_bytes = SizeOf(message.payload);
    sent->message = std::move(message);
    link.outstanding.emplace(sent.get(), sent);
    const bool full = link.outstanding.size() > options_.max_queued_messages;
    InprocInbox* peer = link.pipe->inbox[1 - link.side].get();
    if (link.closing || !link.open || full ||
        !peer->Post({Kind::kMessage, link.pipe, 1 - link.side, sent})) {
      sent->Claim(State::kDone);
      inbox_->Post({Kind::kSent, link.pipe, link.side, sent,
                    absl::UnavailableError("the link is not open")});
    }
    if (full) Close(id, absl::ResourceExhaustedError("the peer does not take its messages"));
  }

  void Abandon(LinkId, OpId) override {}  // a copy never outlives the call that makes it

  void Close(LinkId id, absl::Status reason) override {
    const auto found = links_.find(id);
    if (found == links_.end() || found->second.closing) return;
    Link& link = found->second;
    link.closing = true;
    link.reason = std::move(reason);
    for (const auto& [key, message] : link.outstanding) {
      if (!message->Claim(State::kDone)) continue;  // its receiver will tell
      inbox_->Post({Kind::kSent, link.pipe, link.side, message, link.reason});
    }
    if (InprocInbox* peer = link.pipe->inbox[1 - link.side].get()) {
      peer->Post({Kind::kPeerClosed, link.pipe, 1 - link.side, nullptr,
                  absl::UnavailableError("the peer has closed the link")});
    }
    // Behind the completions above; what is still with the peer is waited for in Finish.
    inbox_->Post({Kind::kFence, link.pipe, link.side});
  }

  void Poll(TransportEvents* events, absl::Duration timeout) override {
    for (InprocItem& item : inbox_->Take(kItemsPerPoll, timeout)) Handle(item, events);
  }

  void Wake() override { inbox_->Wake(); }

 private:
  struct Link {
    std::shared_ptr<InprocPipe> pipe;
    int side = 0;
    bool open = false;
    bool closing = false;
    bool fenced = false;  // its kFence has come through
    absl::Status reason;
    absl::flat_hash_map<InprocMessage*, std::shared_ptr<InprocMessage>> outstanding;
  };

  // A pipe whose both ends are ours has two links, hence the side.
  using End = std::pair<const InprocPipe*, int>;

  LinkId AddLink(std::shared_ptr<InprocPipe> pipe, int side) {
    const LinkId id{next_link_++};
    ends_[End(pipe.get(), side)] = id;
    Link& link = links_[id];
    link.pipe = std::move(pipe);
    link.side = side;
    link.open = side == 1;
    num_inbound_ += side;
    return id;
  }

  void Handle(InprocItem& item, TransportEvents* events) {
    if (item.kind == Kind::kDialled) return HandleDialled(item, events);
    const auto end = ends_.find(End(item.pipe.get(), item.side));
    if (end == ends_.end()) {
      if (item.kind == Kind::kMessage) Refuse(item);
      return;
    }
    const LinkId id = end->second;
    Link& link = links_.at(id);
    switch (item.kind) {
      case Kind::kAccepted:
        if (link.closing) return;
        link.open = true;
        return events->OnConnected(id);
      case Kind::kMessage:
        return HandleMessage(id, item, events);
      case Kind::kSent:
        link.outstanding.erase(item.message.get());
        events->OnSent(id, item.message->message.op, item.status);
        return Finish(id, events);
      case Kind::kPeerClosed:
        return Close(id, item.status);
      case Kind::kFence:
        link.fenced = true;
        return Finish(id, events);
      case Kind::kDialled:
        return;
    }
  }

  void HandleDialled(InprocItem& item, TransportEvents* events) {
    InprocInbox* peer = item.pipe->inbox[0].get();
    if (num_inbound_ >= options_.max_inbound_links) {
      peer->Post({Kind::kPeerClosed, item.pipe, 0, nullptr,
                  absl::ResourceExhaustedError("the peer has too many links")});
      return;
    }
    peer->Post({Kind::kAccepted, item.pipe, 0});
    events->OnAccepted(AddLink(item.pipe, 1), "inproc");
  }

  void HandleMessage(LinkId id, InprocItem& item, TransportEvents* events) {
    if (links_.at(id).closing) return Refuse(item);
    InprocMessage& sent = *item.message;
    if (!sent.Claim(State::kTaken)) return;  // its sender has taken it back
    if (!Fits(sent)) {
      Complete(item, absl::InvalidArgumentError("the message is over a limit of the peer"));
      return Close(id, absl::InvalidArgumentError("a message of the peer is over a limit"));
    }
    const Destination to = events->OnMessage(id, sent.message.control, sent.payload_bytes);
    absl::Status status = links_.at(id).closing ? links_.at(id).reason : absl::OkStatus();
    if (status.ok() && !to.parts.empty()) {
      PD_CHECK(SizeOf(to.parts) == sent.payload_bytes);
      Copy(sent.message.payload, to.parts);
    }
    Complete(item, status);
    if (sent.payload_bytes > 0) events->OnProgress(id);
    if (!to.parts.empty()) events->OnReceived(id, to.op, status);
  }

  bool Fits(const InprocMessage& sent) const {
    return sent.message.control.size() <= options_.max_control_bytes &&
           sent.payload_bytes <= options_.max_payload_bytes;
  }

  static void Complete(InprocItem& item, absl::Status status) {
    item.message->state.store(State::kDone);
    item.pipe->inbox[1 - item.side]->Post(
        {Kind::kSent, item.pipe, 1 - item.side, item.message, std::move(status)});
  }

  static void Refuse(InprocItem& item) {
    if (!item.message->Claim(State::kTaken)) return;
    Complete(item, absl::UnavailableError("the peer has closed the link"));
  }

  void Finish(LinkId id, TransportEvents* events) {
    const auto found = links_.find(id);
    if (found == links_.end() || !found->second.fenced || !found->second.outstanding.empty()) {
      return;
    }
    Link link = std::move(found->second);
    links_.erase(found);
    ends_.erase(End(link.pipe.get(), link.side));
    num_inbound_ -= link.side;
    events->OnClosed(id, link.reason);
  }

  TransportOptions options_;
  std::shared_ptr<InprocInbox> inbox_ = std::make_shared<InprocInbox>();
  std::string address_;
  uint64_t next_link_ = 1;
  uint32_t num_inbound_ = 0;
  absl::flat_hash_map<LinkId, Link> links_;
  absl::flat_hash_map<End, LinkId> ends_;
};

}  // namespace

std::unique_ptr<Transport> MakeTransport_inproc(const TransportOptions& options) {
  return std::make_unique<InprocTransport>(options);
}

}  // namespace pdserve::kvtransfer
