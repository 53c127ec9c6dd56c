#include "kvtransfer/pump_thread.h"

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tests/kvtransfer/pump_parts.h"

namespace pdserve::kvtransfer {
namespace {

constexpr LinkId kEarly{1};
constexpr LinkId kLate{2};

/// What the transport of the test below has seen; outlives it.
class Door {
 public:
  void Greeted() {
    MutexLock lock(&mutex_);
    greeted_ = true;
    changed_.NotifyAll();
  }
  bool WaitGreeted() {
    MutexLock lock(&mutex_);
    const absl::Time until = absl::Now() + kPatience;
    while (!greeted_ && absl::Now() < until) changed_.WaitFor(mutex_, until - absl::Now());
    return greeted_;
  }

  bool late_was_closed = false;  // read after the pump's end

 private:
  Mutex mutex_;
  CondVar changed_;
  bool greeted_ ABSL_GUARDED_BY(mutex_) = false;
};

/// One peer connects at once; when its link is being closed, another one connects and says nothing.
class BusyDoorTransport final : public Transport {
 public:
  explicit BusyDoorTransport(Door* door) : door_(door) {}

  absl::StatusOr<std::string> Listen(const std::string& address) override { return address; }
  LinkId Connect(const std::string&) override { return LinkId{9}; }
  void Send(LinkId, Message) override {}
  void Abandon(LinkId, OpId) override {}
  void Close(LinkId link, absl::Status) override { closing_.insert(link); }
  void Wake() override {}

  void Poll(TransportEvents* events, absl::Duration) override {
    if (++polls_ == 1) {
      events->OnAccepted(kEarly, "early");
      door_->Greeted();
    }
    if (closing_.contains(kEarly) && !std::exchange(late_has_come_, true)) {
      events->OnAccepted(kLate, "late");
      late_since_ = polls_;
    }
    if (closing_.contains(kLate)) door_->late_was_closed = true;
    // Ends a link that nobody closes, so that the test fails instead of hanging.
    if (late_has_come_ && polls_ > late_since_ + 1000) closing_.insert(kLate);
    for (const LinkId link : std::exchange(closing_, {})) {
      events->OnClosed(link, absl::CancelledError("closed"));
    }
  }

 private:
  Door* const door_;
  std::set<LinkId> closing_;
  bool late_has_come_ = false;
  int polls_ = 0;
  int late_since_ = 0;
};

TEST(PumpThreadTest, APeerThatComesDuringShutdownDoesNotHoldItUp) {
  Door door;
  EndRecorder events;
  {
    PumpThread pump(TestOptions("tcp", 1), std::make_unique<BusyDoorTransport>(&door), "here",
                    &events, &Node::SystemTime());
    ASSERT_TRUE(door.WaitGreeted());
  }
  EXPECT_TRUE(door.late_was_closed);
}

}  // namespace
}  // namespace pdserve::kvtransfer
