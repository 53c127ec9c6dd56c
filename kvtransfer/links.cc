#include "kvtransfer/links.h"

#include <algorithm>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kvtransfer/handshake.h"
#include "spdlog/spdlog.h"

namespace pdserve::kvtransfer {

LinkId Links::Dial(const std::string& address, Incarnation peer, absl::Time now) {
  const PeerKey key(address, peer);
  if (const auto found = dialled_.find(key); found != dialled_.end()) return found->second;
  const LinkId id = transport_->Connect(address);
  Link& link = links_[id];
  link.peer = key;
  link.dialled = true;
  link.hello_deadline = now + options_.peer_timeout;
  next_due_ = std::min(next_due_, link.hello_deadline);
  dialled_[key] = id;
  return id;
}

bool Links::ready(LinkId link) const {
  const auto found = links_.find(link);
  return found != links_.end() && found->second.state == State::kReady;
}

bool Links::dialled(LinkId link) const {
  const auto found = links_.find(link);
  return found != links_.end() && found->second.dialled;
}

void Links::Send(LinkId link, const v1::Control& control, std::span<const std::byte> payload,
                 OpId op) {
  Message message;
  message.op = op;
  message.control = control.SerializeAsString();
  if (!payload.empty()) message.payload.push_back(payload);
  transport_->Send(link, std::move(message));
}

void Links::Close(LinkId id, absl::Status reason) {
  const auto found = links_.find(id);
  if (found == links_.end() || found->second.state == State::kClosing) return;
  found->second.state = State::kClosing;
  // A later fetch gets a fresh link, without waiting for this one's end.
  if (found->second.dialled) dialled_.erase(found->second.peer);
  transport_->Close(id, std::move(reason));
}

void Links::CloseAll(const absl::Status& reason) {
  std::vector<LinkId> ids;
  for (const auto& [id, link] : links_) ids.push_back(id);
  for (const LinkId id : ids) Close(id, reason);
}

void Links::OnAccepted(LinkId id, const std::string& peer, absl::Time now) {
  Link& link = links_[id];
  link.state = State::kGreeting;
  link.peer.first = peer;
  link.hello_deadline = now + options_.peer_timeout;
  next_due_ = std::min(next_due_, link.hello_deadline);
}

void Links::OnConnected(LinkId id) {
  const auto found = links_.find(id);
  if (found == links_.end() || found->second.state != State::kConnecting) return;
  found->second.state = State::kGreeting;
  Greet(id, found->second, "");
}

void Links::Greet(LinkId id, const Link& link, const std::string& refusal) {
  v1::Control control;
  *control.mutable_hello() = MakeHello(options_, link.dialled ? link.peer.second : Incarnation{});
  control.mutable_hello()->set_refusal(refusal);
  if (refusal.empty()) return Send(id, control);
  Send(id, control, {}, link.refusal);
}

bool Links::OnHello(LinkId id, const v1::LinkHello& hello, absl::Time now) {
  const auto found = links_.find(id);
  if (found == links_.end()) return false;
  Link& link = found->second;
  if (link.state != State::kGreeting) {
    Close(id, absl::InvalidArgumentError("a hello came where none was due"));
    return false;
  }
  const absl::Status agreed = CheckHello(options_, link.peer.second, hello);
  link.peer_id = absl::CEscape(hello.node_id().substr(0, 64));
  if (!agreed.ok() && link.dialled) {
    Close(id, agreed);
    return false;
  }
  if (!agreed.ok()) {
    spdlog::warn("refused a link from node {} at {}: {}", link.peer_id, link.peer.first,
                 std::string(agreed.message()));
    link.state = State::kRefusing;
    link.refusal = NewOp();
    Greet(id, link, std::string(agreed.message()));
    return false;
  }
  if (!link.dialled) Greet(id, link, "");
  link.state = State::kReady;
  link.last_heard = now;
  link.next_beat = now + options_.heartbeat_interval;
  next_due_ = std::min(next_due_, link.next_beat);
  spdlog::debug("link with node {} at {} is ready", link.peer_id, link.peer.first);
  return true;
}

void Links::OnHeard(LinkId id, absl::Time now) {
  const auto found = links_.find(id);
  if (found != links_.end()) found->second.last_heard = now;
}

void Links::OnSent(LinkId id, OpId op) {
  const auto found = links_.find(id);
  if (found == links_.end() || found->second.state != State::kRefusing) return;
  if (op == found->second.refusal) {
    Close(id, absl::FailedPreconditionError("the peer was refused"));
  }
}

void Links::OnClosed(LinkId id, const absl::Status& reason) {
  const auto found = links_.find(id);
  if (found == links_.end()) return;
  const Link& link = found->second;
  if (const auto peer = dialled_.find(link.peer); peer != dialled_.end() && peer->second == id) {
    dialled_.erase(peer);
  }
  spdlog::debug("link with node {} at {} has ended: {}", link.peer_id, link.peer.first,
                std::string(reason.message()));
  links_.erase(found);
}

void Links::Tick(absl::Time now) {
  if (now < next_due_) return;
  next_due_ = absl::InfiniteFuture();
  for (auto& [id, link] : links_) TickLink(id, link, now);
}

void Links::TickLink(LinkId id, Link& link, absl::Time now) {
  if (link.state == State::kClosing) return;
  if (link.state != State::kReady) {
    if (now >= link.hello_deadline) {
      return Close(id, absl::UnavailableError(
                           absl::StrCat("no agreement with the peer at ", link.peer.first,
                                        " within ", absl::FormatDuration(options_.peer_timeout))));
    }
    next_due_ = std::min(next_due_, link.hello_deadline);
    return;
  }
  if (now >= link.last_heard + options_.peer_timeout) {
    return Close(
        id, absl::UnavailableError(absl::StrCat("nothing heard from node ", link.peer_id, " for ",
                                                absl::FormatDuration(options_.peer_timeout))));
  }
  if (now >= link.next_beat) {
    v1::Control control;
    control.mutable_heartbeat()->set_sequence(link.beats++);
    Send(id, control);
    link.next_beat = now + options_.heartbeat_interval;
  }
  next_due_ = std::min({next_due_, link.next_beat, link.last_heard + options_.peer_timeout});
}

}  // namespace pdserve::kvtransfer
