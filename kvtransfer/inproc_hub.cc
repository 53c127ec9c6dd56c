#include "kvtransfer/inproc_hub.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace pdserve::kvtransfer {

bool InprocInbox::Post(InprocItem item) {
  MutexLock lock(&mutex_);
  if (shut_) return false;
  items_.push_back(std::move(item));
  changed_.NotifyOne();
  return true;
}

void InprocInbox::Wake() {
  MutexLock lock(&mutex_);
  woken_ = true;
  changed_.NotifyOne();
}

std::vector<InprocItem> InprocInbox::Take(size_t limit, absl::Duration timeout) {
  MutexLock lock(&mutex_);
  const absl::Time end = absl::Now() + timeout;
  while (items_.empty() && !woken_ && timeout > absl::ZeroDuration()) {
    changed_.WaitFor(mutex_, timeout);
    timeout = end - absl::Now();
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
  MutexLock lock(&mutex_);
  shut_ = true;
  return std::exchange(items_, {});
}

InprocHub& InprocHub::Get() {
  static auto* hub = new InprocHub;  // outlives every thread
  return *hub;
}

absl::StatusOr<std::string> InprocHub::Add(const std::string& address,
                                           const std::shared_ptr<InprocInbox>& inbox) {
  MutexLock lock(&mutex_);
  std::string name = address;
  if (name.empty() || absl::EndsWith(name, ":0")) name = absl::StrCat("inproc:", next_++);
  if (!inboxes_.emplace(name, inbox).second) {
    return absl::AlreadyExistsError(absl::StrCat("in this process someone listens at ", name));
  }
  return name;
}

void InprocHub::Remove(const std::string& address) {
  MutexLock lock(&mutex_);
  inboxes_.erase(address);
}

std::shared_ptr<InprocInbox> InprocHub::Find(const std::string& address) {
  MutexLock lock(&mutex_);
  const auto found = inboxes_.find(address);
  return found == inboxes_.end() ? nullptr : found->second;
}

}  // namespace pdserve::kvtransfer
