// The pump itself: a thread that takes the node's calls from a bounded mailbox, runs the transport,
// and leads each event to the part that it concerns. Everything but the mailbox, the ledger and the
// flags belongs to the thread.
#ifndef PDSERVE_KVTRANSFER_PUMP_THREAD_H_
#define PDSERVE_KVTRANSFER_PUMP_THREAD_H_

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/bounded_queue.h"
#include "common/mutex.h"
#include "kvtransfer/fetches.h"
#include "kvtransfer/links.h"
#include "kvtransfer/offers.h"
#include "kvtransfer/pump.h"
#include "kvtransfer/ticket_ledger.h"
#include "kvtransfer/transport.h"

namespace pdserve::kvtransfer {

class PumpThread final : public Pump, private TransportEvents {
 public:
  /// `transport` listens already, at `address`. Pump::Start is the usual way; tests bring their
  /// own.
  PumpThread(const PumpOptions& options, std::unique_ptr<Transport> transport,
             const std::string& address, PumpEvents* events, const Clock* clock);
  ~PumpThread() override;

  std::string address() const override { return address_; }
  absl::Status Offer(const OfferSpec& spec) override;
  void Extend(Ticket ticket, std::vector<std::span<const std::byte>> blocks) override;
  void Commit(Ticket ticket, const CommitRecord& record) override;
  void Withdraw(Ticket ticket, const std::string& reason) override;
  absl::Status Fetch(FetchSpec spec) override;
  void CancelFetch(Ticket ticket, const std::string& reason) override;

 private:
  struct ToOffer {
    Ticket ticket;
    SenderEvent event;
  };
  struct ToFetch {
    Ticket ticket;
    ReceiverEvent event;
  };
  using Call = std::variant<OfferSpec, FetchSpec, ToOffer, ToFetch>;

  bool Post(Call call);
  void PostOrFail(Ticket ticket, Call call);
  void Loop();
  void Turn(absl::Duration longest);
  void TakeCalls();
  void EndOverflowed();
  void ShutDown();

  void OnAccepted(LinkId link, const std::string& peer) override;
  void OnConnected(LinkId link) override;
  Destination OnMessage(LinkId link, std::string_view control, uint64_t payload_bytes) override;
  void OnProgress(LinkId link) override;
  void OnReceived(LinkId link, OpId op, absl::Status status) override;
  void OnSent(LinkId link, OpId op, absl::Status status) override;
  void OnClosed(LinkId link, absl::Status reason) override;
  void FromFetcher(LinkId link, const v1::Control& control);
  Destination FromOfferer(LinkId link, const v1::Control& control, uint64_t payload_bytes);
  void OnCancel(LinkId link, const v1::CancelTransfer& cancel);

  const PumpOptions options_;
  const std::string address_;
  const Clock* const clock_;
  const std::unique_ptr<Transport> transport_;
  TicketLedger ledger_;
  Links links_;
  Offers offers_;
  Fetches fetches_;

  BoundedQueue<Call> mailbox_;
  std::atomic<bool> wake_sent_ = false;
  std::atomic<bool> stopping_ = false;
  Mutex overflow_mutex_;
  std::vector<Ticket> overflowed_ ABSL_GUARDED_BY(overflow_mutex_);
  std::thread thread_;
};

/// InvalidArgument, naming the option, where they can't work together.
absl::Status CheckPumpOptions(const PumpOptions& options);
TransportOptions TransportOptionsOf(const PumpOptions& options);

}  // namespace pdserve::kvtransfer

#endif  // PDSERVE_KVTRANSFER_PUMP_THREAD_H_
