// Wakes one coroutine: somebody notifies, or a deadline passes. Belongs to one strand; at most one
// waiter. What happened is for the waiter to look up: a notification carries nothing, and two may
// count as one.
#ifndef PDSERVE_ROUTER_EVENT_H_
#define PDSERVE_ROUTER_EVENT_H_

#include <algorithm>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "absl/time/time.h"
#include "common/clock.h"

namespace pdserve::router {

class Event {
 public:
  Event(const boost::asio::any_io_executor& strand, const Clock* clock)
      : timer_(strand), clock_(clock) {}

  void Notify() {
    is_set_ = true;
    timer_.cancel();
  }

  /// False: the deadline has passed without a notification.
  boost::asio::awaitable<bool> Wait(absl::Time deadline) {
    while (!is_set_) {
      const absl::Duration left = deadline - clock_->Now();
      if (left <= absl::ZeroDuration()) co_return false;
      timer_.expires_after(absl::ToChronoNanoseconds(std::min(left, absl::Hours(1))));
      co_await timer_.async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
    }
    is_set_ = false;
    co_return true;
  }

 private:
  boost::asio::steady_timer timer_;
  const Clock* const clock_;
  bool is_set_ = false;
};

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_EVENT_H_
