// Bytes per second of a hand-over, by transport and piece size: two pumps in one process, beside
// memcpy, CRC32C and a raw TCP loopback stream of the same machine in the same run. Every line ends
// with a hash of what arrived, so that speed is never shown over wrong bytes.
#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "kvtransfer/crc32c.h"
#include "kvtransfer/pump.h"
#include "kvtransfer/transport.h"

namespace {

using namespace pdserve;              // NOLINT
using namespace pdserve::kvtransfer;  // NOLINT
using Bytes = std::vector<std::byte>;

constexpr size_t kTotal = 64 << 20;
constexpr int kRounds = 9;

double Seconds(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Best and median of several rounds: the machine is rarely ours alone.
void Report(const std::string& name, size_t piece_bytes, const std::function<void()>& round,
            const Bytes& result) {
  std::vector<double> times;
  for (int i = 0; i < kRounds; ++i) times.push_back(Seconds(round));
  std::sort(times.begin(), times.end());
  std::printf("%-14s %8zu KiB   best %6.2f GB/s   median %6.2f GB/s   hash %08x\n", name.c_str(),
              piece_bytes >> 10, kTotal / times.front() * 1e-9, kTotal / times[kRounds / 2] * 1e-9,
              Crc32c(result));
}

struct Ends final : PumpEvents {
  void OnOfferFetched(Ticket) override {}
  void OnOfferEnded(Ticket, absl::Status status, const TransferStats&) override {
    if (!status.ok()) std::abort();
    offer->Notify();
  }
  void OnFetchEnded(Ticket, absl::StatusOr<CommitRecord> commit, const TransferStats&) override {
    if (!commit.ok()) std::abort();
    fetch->Notify();
  }
  std::unique_ptr<absl::Notification> offer, fetch;
};

class HandOvers {
 public:
  HandOvers(const std::string& transport, size_t piece_bytes, Bytes& from, Bytes& to)
      : piece_bytes_(piece_bytes), from_(from), to_(to) {
    PumpOptions options;
    options.transport = transport;
    options.block_bytes = static_cast<uint32_t>(piece_bytes);
    options.block_tokens = 1;
    options.piece_bytes = static_cast<int64_t>(piece_bytes);
    options.incarnation = Incarnation{1};
    sender_ = *Pump::Start(options, &ends_, &clock_);
    options.incarnation = Incarnation{2};
    receiver_ = *Pump::Start(options, &ends_, &clock_);
  }

  void Round() {
    ends_.offer = std::make_unique<absl::Notification>();
    ends_.fetch = std::make_unique<absl::Notification>();
    Ticket ticket;
    std::memcpy(ticket.value.data(), &++number_, sizeof number_);
    const absl::Time deadline = clock_.Now() + absl::Minutes(1);
    const uint32_t count = kTotal / piece_bytes_;
    std::vector<std::span<const std::byte>> blocks;
    FetchSpec fetch{ticket, sender_->address(), Incarnation{1}, {}, deadline};
    for (uint32_t i = 0; i < count; ++i) {
      blocks.push_back(std::span(from_).subspan(i * piece_bytes_, piece_bytes_));
      fetch.destinations.push_back(std::span(to_).subspan(i * piece_bytes_, piece_bytes_));
    }
    CommitRecord record;
    record.num_tokens = count;
    if (!sender_->Offer({ticket, count, deadline}).ok()) std::abort();
    sender_->Extend(ticket, std::move(blocks));
    sender_->Commit(ticket, record);
    if (!receiver_->Fetch(std::move(fetch)).ok()) std::abort();
    ends_.fetch->WaitForNotification();
    ends_.offer->WaitForNotification();
  }

 private:
  const size_t piece_bytes_;
  Bytes& from_;
  Bytes& to_;
  SystemClock clock_;
  Ends ends_;
  std::unique_ptr<Pump> sender_, receiver_;
  uint64_t number_ = 0;
};

class RawTcp {
 public:
  RawTcp() {
    using boost::asio::ip::tcp;
    tcp::acceptor acceptor(io_, {boost::asio::ip::address_v4::loopback(), 0});
    near_.connect(acceptor.local_endpoint());
    acceptor.accept(far_);
    near_.set_option(tcp::no_delay(true));
  }
  void Round(const Bytes& from, Bytes& to, size_t piece_bytes) {
    std::thread sender([&] {
      for (size_t at = 0; at < kTotal; at += piece_bytes) {
        boost::asio::write(near_, boost::asio::buffer(from.data() + at, piece_bytes));
      }
    });
    for (size_t at = 0; at < kTotal; at += piece_bytes) {
      boost::asio::read(far_, boost::asio::buffer(to.data() + at, piece_bytes));
    }
    sender.join();
  }

 private:
  boost::asio::io_context io_;
  boost::asio::ip::tcp::socket near_{io_}, far_{io_};
};

}  // namespace

int main() {
  Bytes from(kTotal), to(kTotal);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  std::printf("%d rounds of %zu MiB; source hash %08x\n", kRounds, kTotal >> 20, Crc32c(from));
  for (const Crc32cVariant& variant : Crc32cVariants()) {
    if (!variant.works()) continue;
    volatile uint32_t kept = 0;
    Report(
        std::string("crc32c ") + variant.name, kTotal,
        [&] { kept = variant.extend(kept, from.data(), from.size()); }, from);
  }
  RawTcp raw;
  for (size_t piece_bytes = 64 << 10; piece_bytes <= 16 << 20; piece_bytes *= 4) {
    const auto clean = [&] { std::fill(to.begin(), to.end(), std::byte{0}); };
    clean();
    Report(
        "memcpy", piece_bytes,
        [&] {
          for (size_t at = 0; at < kTotal; at += piece_bytes) {
            std::memcpy(to.data() + at, from.data() + at, piece_bytes);
          }
        },
        to);
    clean();
    Report("raw tcp", piece_bytes, [&] { raw.Round(from, to, piece_bytes); }, to);
    for (const std::string& name : TransportNames()) {
      clean();
      HandOvers hand_overs(name, piece_bytes, from, to);
      Report(name, piece_bytes, [&] { hand_overs.Round(); }, to);
    }
  }
  return 0;
}
