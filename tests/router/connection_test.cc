// The HTTP server without a router behind it: many connections, threads and ends at once.
#include "router/connection.h"

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/router/http_client.h"
#include "tests/router/router_rig.h"

namespace pdserve::router {
namespace {

namespace asio = boost::asio;
using testing::HttpClient;

class ConnectionTest : public ::testing::Test {
 protected:
  ConnectionTest() {
    EXPECT_TRUE(server_.Listen("127.0.0.1:0").ok());
    for (int i = 0; i < 2; ++i) threads_.emplace_back([this] { io_.run(); });
  }
  ~ConnectionTest() override {
    server_.Close();
    work_.reset();
    io_.stop();
    for (std::thread& thread : threads_) thread.join();
  }

  // /wait is answered when the client has left; /stream by ten events; all else by its path.
  asio::awaitable<void> Handle(Exchange& exchange) {
    const std::string& target = exchange.request().target;
    if (target == "/wait") {
      ++waiting_;
      while (!exchange.client_left()) {
        co_await exchange.event().Wait(clock_.Now() + absl::Seconds(20));
      }
      ++left_;
      co_return;
    }
    if (target == "/stream") {
      exchange.StartStream();
      for (int i = 0; i < 10; ++i) exchange.Send("data: " + std::to_string(i) + "\n\n");
      exchange.EndStream(/*must_close=*/false);
      co_return;
    }
    Answer answer;
    answer.body = target;
    exchange.Respond(answer);
  }

  SystemClock clock_;
  std::atomic<int> waiting_ = 0, left_ = 0;
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  HttpServer server_{HttpOptions{}, io_, [this](Exchange& exchange) { return Handle(exchange); },
                     &clock_};
  std::vector<std::thread> threads_;
};

TEST_F(ConnectionTest, ManyClientsGetTheirOwnAnswers) {
  std::vector<std::thread> clients;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] {
      HttpClient client(server_.address());
      for (int k = 0; k < 100; ++k) {
        const std::string path = "/" + std::to_string(i) + "-" + std::to_string(k);
        client.Get(path);
        if (client.Read().body != path) ++wrong;
        client.Get("/stream");
        if (testing::Events(client.Read().body).size() != 10) ++wrong;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(ConnectionTest, ClientsThatLeaveAreNoticedWhileTheyWait) {
  for (int i = 0; i < 20; ++i) {
    HttpClient client(server_.address());
    client.Get("/wait");
    ASSERT_TRUE(testing::Eventually([&] { return waiting_ == i + 1; }));
    if (i % 2 == 0) client.Reset();
  }
  EXPECT_TRUE(testing::Eventually([&] { return left_ == 20; }));
}

TEST_F(ConnectionTest, CloseEndsEveryConnectionAndRequest) {
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 10; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server_.address()));
    if (i % 2 == 0) clients.back()->Get("/wait");
  }
  ASSERT_TRUE(testing::Eventually([&] { return waiting_ == 5; }));
  server_.Close();
  EXPECT_EQ(left_, 5);
  for (auto& client : clients) EXPECT_EQ(client->Read().status, 0);
}

TEST_F(ConnectionTest, StopListeningEndsIdleConnectionsAndLeavesBusyOnes) {
  HttpClient idle(server_.address());
  idle.Get("/a");
  EXPECT_EQ(idle.Read().status, 200);
  HttpClient busy(server_.address());
  busy.Get("/wait");
  ASSERT_TRUE(testing::Eventually([&] { return waiting_ == 1; }));
  const std::string address = server_.address();
  server_.StopListening();
  EXPECT_TRUE(idle.IsClosedByPeer());
  EXPECT_EQ(left_, 0);
  HttpClient late(address);
  late.Get("/a");
  EXPECT_EQ(late.Read().status, 0);
}

}  // namespace
}  // namespace pdserve::router
