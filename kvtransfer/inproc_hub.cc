#include "kvtransfer/inproc_hub.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace pdserve::kvtransfer {

bool InprocInbox::Post(InprocItem item) {
  absl::MutexLock lock(&mutex_);
  if (shut_) return false;
  items_.push_back(std::move(item));
  return true;
}

void InprocInbox::Wake() {
  absl::MutexLock lock(&mutex_);
  woken_ = true;
}

std::vector<InprocItem> InprocInbox::Take(size_t limit, absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  if (timeout > absl::ZeroDuration()) {
    mutex_.AwaitWithTimeout(absl::Condition(this, &InprocInbox::Ready), timeout);
  }
  woken_ = false;
  std::vector<InprocItem> taken;
  while (!items_.empty() && taken.size() < limit) {
    taken.push_back(std::move(items_.front()));
    items_.pop_front();
  }
  return taken;
}

std::deque<InprocItem> InprocInbox::Shut() {
  absl::MutexLock lock(&mutex_);
  shut_ = true;
  return std::exchange(items_, {});
}

InprocHub& InprocHub::Get() {
  static auto* hub = new InprocHub;  // outlives every thread
  return *hub;
}

absl::StatusOr<std::string> InprocHub::Add(const std::string& address,
                                           const std::shared_ptr<InprocInbox>& inbox) {
  absl::MutexLock lock(&mutex_);
  std::string name = address;
  if (name.empty() || absl::EndsWith(name, ":0")) name = absl::StrCat("inproc:", next_++);
  if (!inboxes_.emplace(name, inbox).second) {
    return absl::AlreadyExistsError(absl::StrCat("in this process someone listens at ", name));
  }
  return name;
}

void InprocHub::Remove(const std::string& address) {
  absl::MutexLock lock(&mutex_);
  inboxes_.erase(address);
}

std::shared_ptr<InprocInbox> InprocHub::Find(const std::string& address) {
  absl::MutexLock lock(&mutex_);
  const auto found = inboxes_.find(address);
  return found == inboxes_.end() ? nullptr : found->second;
}

}  // namespace pdserve::kvtransfer
