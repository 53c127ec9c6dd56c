// What the in-process transports of one process share: inboxes found by address, and the messages
// that lie in them. An inbox may be posted to from any thread; its transport alone takes from it.
// A message has one owner at a time, decided by its state: the receiver copies only between kTaken
// and kDone; the sender may take it back only while it is kQueued.
#ifndef PDSERVE_KVTRANSFER_INPROC_HUB_H_
#define PDSERVE_KVTRANSFER_INPROC_HUB_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "kvtransfer/transport.h"

namespace pdserve::kvtransfer {

class InprocInbox;

struct InprocMessage {
  enum class State { kQueued, kTaken, kDone };

  Message message;
  uint64_t payload_bytes = 0;
  std::atomic<State> state{State::kQueued};

  bool Claim(State next) {
    State expected = State::kQueued;
    return state.compare_exchange_strong(expected, next);
  }
};

/// One link, seen by both sides: [0] has dialled, [1] was found.
struct InprocPipe {
  std::shared_ptr<InprocInbox> inbox[2];
};

struct InprocItem {
  enum class Kind { kDialled, kAccepted, kMessage, kSent, kPeerClosed, kFence };

  Kind kind;
  std::shared_ptr<InprocPipe> pipe;
  int side = 0;                            // of the pipe: who is told
  std::shared_ptr<InprocMessage> message;  // kMessage, kSent
  absl::Status status;                     // kSent, kPeerClosed
};

class InprocInbox {
 public:
  /// False once its transport is gone.
  bool Post(InprocItem item);
  void Wake();
  /// Up to `limit` items; waits up to `timeout` for the first or a Wake.
  std::vector<InprocItem> Take(size_t limit, absl::Duration timeout);
  /// Refuses every later post; what lay here.
  std::deque<InprocItem> Shut();

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<InprocItem> items_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool shut_ ABSL_GUARDED_BY(mutex_) = false;
};

/// Address > inbox, for the whole process. Thread-safe.
class InprocHub {
 public:
  static InprocHub& Get();

  /// What `address` became: one that ends in ":0" or is empty gets a name of its own.
  /// AlreadyExists where someone listens there.
  absl::StatusOr<std::string> Add(const std::string& address,
                                  const std::shared_ptr<InprocInbox>& inbox);
  void Remove(const std::string& address);
  std::shared_ptr<InprocInbox> Find(const std::string& address);

 private:
  Mutex mutex_;
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<std::string, std::shared_ptr<InprocInbox>> inboxes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pdserve::kvtransfer

#endif  // PDSERVE_KVTRANSFER_INPROC_HUB_H_
