#include "router/http.h"

#include "gtest/gtest.h"
#include "tests/router/router_rig.h"

namespace pdserve::testing {
namespace {

class HttpTest : public ::testing::Test {
 protected:
  RouterRig rig_;
};

TEST_F(HttpTest, OneConnectionServesAThousandMixedRequests) {
  rig_.AddPair();
  rig_.Start();
  HttpClient client(rig_.address());
  for (int i = 0; i < 1000; ++i) {
    const int tokens = 1 + i % 5;
    const std::string text = std::string("abcde").substr(0, static_cast<size_t>(tokens));
    const std::string id = "x-request-id: number-" + std::to_string(i) + "\r\n";
    switch (i % 5) {
      case 0:
        client.Post("/v1/completions", CompletionBody(tokens), id);
        break;
      case 1:
        client.Post("/v1/completions", CompletionBody(tokens, R"("stream":true)"), id);
        break;
      case 2:
        client.Post("/v1/completions", R"({"prompt":7})", id);
        break;
      case 3: {
        const std::string body = CompletionBody(tokens);
        char size[16];
        snprintf(size, sizeof size, "%zx", body.size() - 3);
        client.Send("POST /completions/ HTTP/1.1\r\nHost: a\r\n" + id +
                    "Transfer-Encoding: chunked\r\n\r\n3\r\n" + body.substr(0, 3) + "\r\n" + size +
                    "\r\n" + body.substr(3) + "\r\n0\r\n\r\n");
        break;
      }
      default:
        client.Send("HEAD /health HTTP/1.1\r\nHost: a\r\n" + id + "\r\n");
        break;
    }
    const HttpAnswer answer = client.Read(/*is_head=*/i % 5 == 4);
    ASSERT_EQ(answer.status, i % 5 == 2 ? 400 : 200) << i << answer.body;
    ASSERT_EQ(answer.headers.at("x-request-id"), "number-" + std::to_string(i));
    ASSERT_EQ(answer.headers.at("connection"), "keep-alive");
    if (i % 5 == 0 || i % 5 == 3) {
      ASSERT_EQ(answer.json()["choices"][0]["text"], text);
    }
    if (i % 5 == 1) {
      ASSERT_EQ(Events(answer.body).back(), "[DONE]");
    }
  }
}

TEST_F(HttpTest, PipelinedRequestsAreAnsweredInOrder) {
  rig_.AddPair();
  rig_.Start();
  HttpClient client(rig_.address());
  std::string all;
  for (int i = 1; i <= 50; ++i) {
    const std::string body = CompletionBody(1 + i % 9);
    all += "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  client.Send(all);
  for (int i = 1; i <= 50; ++i) {
    const HttpAnswer answer = client.Read();
    ASSERT_EQ(answer.status, 200) << i;
    ASSERT_EQ(answer.json()["usage"]["completion_tokens"], 1 + i % 9);
  }
}

TEST_F(HttpTest, MorePipelinedBytesThanAreKeptArriveAllTheSame) {
  rig_.AddPair();
  rig_.Start();
  HttpClient client(rig_.address());
  const std::string filler(60'000, ' ');
  std::string all;
  for (int i = 0; i < 8; ++i) {
    const std::string body = CompletionBody(2) + filler;
    all += "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  client.Send(all);
  for (int i = 0; i < 8; ++i) ASSERT_EQ(client.Read().status, 200) << i;
}

TEST_F(HttpTest, ExpectIsAnsweredBeforeTheBodyComes) {
  rig_.AddPair();
  rig_.Start();
  HttpClient client(rig_.address());
  const std::string body = CompletionBody(2);
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send(body);
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(HttpTest, TooLargeABodyIsRefusedWithTheLimitBeforeItIsSent) {
  rig_.options.max_body_bytes = 2000;
  rig_.AddPair();
  rig_.Start();
  HttpClient client(rig_.address());
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
      "Content-Length: 2001\r\n\r\n");
  const HttpAnswer answer = client.Read();
  EXPECT_EQ(answer.status, 413);
  EXPECT_EQ(answer.code(), "body_too_large");
  EXPECT_NE(answer.body.find("2000"), std::string::npos);
  EXPECT_TRUE(client.IsClosedByPeer());

  HttpClient chunked(rig_.address());
  chunked.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
      "800\r\n" +
      std::string(0x800, ' '));
  EXPECT_EQ(chunked.Read().status, 413);

  HttpClient sent(rig_.address());
  sent.Post("/v1/completions", std::string(100'000, ' '));
  EXPECT_EQ(sent.Read().status, 413);
}

TEST_F(HttpTest, TooLargeAHeaderIs431) {
  rig_.options.max_header_bytes = 2000;
  rig_.Start(/*must_be_ready=*/false);
  HttpClient client(rig_.address());
  client.Send("GET /livez HTTP/1.1\r\nHost: a\r\nX: " + std::string(3000, 'x') + "\r\n\r\n");
  EXPECT_EQ(client.Read().status, 431);
  HttpClient endless(rig_.address());
  endless.Send("GET /livez HTTP/1.1\r\nX: " + std::string(200'000, 'x'));
  EXPECT_EQ(endless.Read().status, 431);
  HttpClient target(rig_.address());
  target.Send("GET /" + std::string(3000, 'x') + " HTTP/1.1\r\n\r\n");
  EXPECT_EQ(target.Read().status, 431);
}

TEST_F(HttpTest, WhatIsNotHttpGetsAnOpenAiShaped400AndAClose) {
  rig_.Start(/*must_be_ready=*/false);
  const char* requests[] = {
      "hello\r\n\r\n",
      "GET /livez\r\n\r\n",
      "GET /livez HTTP/9.1\r\n\r\n",
      "GET /livez HTTP/1.1\r\nno colon\r\n\r\n",
      "POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
      "POST /v1/completions HTTP/1.1\r\nContent-Length: 9x\r\n\r\n",
      "POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
      "POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
      "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
  };
  for (const char* request : requests) {
    HttpClient client(rig_.address());
    client.Send(request);
    const HttpAnswer answer = client.Read();
    EXPECT_EQ(answer.status, 400) << request;
    EXPECT_EQ(answer.json()["error"]["type"], "invalid_request_error") << request;
    EXPECT_TRUE(answer.headers.contains("x-request-id"));
    EXPECT_TRUE(client.IsClosedByPeer()) << request;
  }
  EXPECT_EQ(Get(rig_.address(), "/livez").status, 200);
}

TEST_F(HttpTest, AFramingThatIsNotUndoneIsRefusedAndEndsTheConnection) {
  rig_.Start(/*must_be_ready=*/false);
  for (const char* coding : {"gzip, chunked", "identity", "chunked, chunked"}) {
    HttpClient client(rig_.address());
    client.Send(std::string("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: ") + coding +
                "\r\n\r\n2\r\n{}\r\n0\r\n\r\n");
    const HttpAnswer answer = client.Read();
    EXPECT_GE(answer.status, 400) << coding;
    EXPECT_NE(answer.code(), "missing_required_parameter") << coding;
    EXPECT_TRUE(client.IsClosedByPeer()) << coding;
  }
}

TEST_F(HttpTest, EmptyLinesBeforeARequestAreNoPartOfIt) {
  rig_.Start(/*must_be_ready=*/false);
  HttpClient client(rig_.address());
  for (int i = 0; i < 3; ++i) {
    client.Send("\r\n\r\nGET /livez HTTP/1.1\r\n\r\n");
    EXPECT_EQ(client.Read().status, 200);
  }
}

TEST_F(HttpTest, WhatAClientSentComesBackInErrorsOnlyInPart) {
  rig_.AddPair();
  rig_.Start();
  const std::string name(100000, 'x');
  for (const std::string& field : {"\"" + name + "\":1", "\"model\":\"" + name + "\""}) {
    const HttpAnswer answer =
        Post(rig_.address(), "/v1/completions", "{\"prompt\":\"a\"," + field + "}");
    EXPECT_EQ(answer.status / 100, 4);
    EXPECT_LT(answer.body.size(), 4000u);
    EXPECT_NE(answer.body.find("xxxx"), std::string::npos);
  }
}

TEST_F(HttpTest, BodiesOfAllRequestsTogetherHaveABound) {
  rig_.options.max_body_bytes = 100'000;
  rig_.options.max_bodies_bytes = 150'000;
  rig_.Start(/*must_be_ready=*/false);
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 90000\r\n\r\n";
  auto first = std::make_unique<HttpClient>(rig_.address());
  first->Send(head + std::string(89'000, ' '));
  const auto status = [&] {
    HttpClient client(rig_.address());
    client.Send(head + std::string(90'000, ' '));
    return client.Read().status;
  };
  EXPECT_TRUE(Eventually([&] { return status() == 503; }));
  first = nullptr;
  EXPECT_TRUE(Eventually([&] { return status() == 400; }));  // is read, and is no JSON
}

TEST_F(HttpTest, RequestsMayComeByteByByte) {
  rig_.AddPair();
  rig_.Start();
  HttpClient client(rig_.address());
  const std::string body = CompletionBody(2);
  const std::string request =
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) +
      "\r\n\r\n" + body;
  for (const char byte : request) client.Send(std::string(1, byte));
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(HttpTest, OldClientsGetAnswersWithoutChunks) {
  rig_.AddPair();
  rig_.Start();
  HttpClient client(rig_.address());
  const std::string body = CompletionBody(2, R"("stream":true)");
  client.Send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
  const HttpAnswer answer = client.Read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_FALSE(answer.headers.contains("transfer-encoding"));
  EXPECT_EQ(answer.headers.at("connection"), "close");
  EXPECT_EQ(Events(answer.body).back(), "[DONE]");
}

TEST_F(HttpTest, ConnectionCloseIsHonoured) {
  rig_.Start(/*must_be_ready=*/false);
  HttpClient client(rig_.address());
  client.Send("GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.Read().headers.at("connection"), "close");
  EXPECT_TRUE(client.IsClosedByPeer());
}

TEST_F(HttpTest, IdleConnectionsAndHalfRequestsAreClosed) {
  rig_.options.idle_timeout = absl::Milliseconds(50);
  rig_.Start(/*must_be_ready=*/false);
  HttpClient idle(rig_.address());
  EXPECT_TRUE(idle.IsClosedByPeer());
  HttpClient half(rig_.address());
  half.Send("GET /livez HTTP/1.1\r\nHos");
  EXPECT_EQ(half.Read().status, 408);
}

TEST_F(HttpTest, ABodyThatTricklesInIsGivenUpInTheEnd) {
  rig_.options.idle_timeout = absl::Milliseconds(50);
  rig_.Start(/*must_be_ready=*/false);
  HttpClient client(rig_.address());
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
  int sent = 0;
  for (; sent < 4000 && !client.HasInput(absl::Milliseconds(5)); ++sent) client.Send(" ");
  EXPECT_LT(sent, 4000);
  const HttpAnswer answer = client.Read();
  EXPECT_EQ(answer.status, 408);
  EXPECT_EQ(answer.code(), "request_timeout");
  EXPECT_EQ(answer.headers.at("connection"), "close");
}

TEST_F(HttpTest, MoreConnectionsThanTheLimitAreTurnedAway) {
  rig_.options.max_connections = 2;
  rig_.Start(/*must_be_ready=*/false);
  HttpClient one(rig_.address());
  HttpClient two(rig_.address());
  one.Get("/livez");
  two.Get("/livez");
  EXPECT_EQ(one.Read().status, 200);
  EXPECT_EQ(two.Read().status, 200);
  HttpClient three(rig_.address());
  const HttpAnswer answer = three.Read();
  EXPECT_EQ(answer.status, 503);
  EXPECT_TRUE(answer.headers.contains("retry-after"));
  one.Close();
  EXPECT_TRUE(Eventually([&] { return Get(rig_.address(), "/livez").status == 200; }));
}

TEST_F(HttpTest, RequestIdsOfClientsAreTakenOnlyIfShortAndPrintable) {
  rig_.Start(/*must_be_ready=*/false);
  const auto id_for = [&](const std::string& id) {
    HttpClient client(rig_.address());
    client.Send("GET /livez HTTP/1.1\r\nHost: a\r\nX-Request-Id: " + id + "\r\n\r\n");
    return client.Read().headers["x-request-id"];
  };
  EXPECT_EQ(id_for("abc-1"), "abc-1");
  EXPECT_EQ(id_for(std::string(129, 'a')).substr(0, 4), "req-");
  EXPECT_EQ(id_for("a b").substr(0, 4), "req-");
  EXPECT_NE(id_for(""), id_for(""));
}

TEST_F(HttpTest, WebPagesMayNotPostWithoutJson) {
  rig_.AddPair();
  rig_.Start();
  const auto post = [&](const std::string& headers) {
    HttpClient client(rig_.address());
    const std::string body = CompletionBody(1);
    client.Send("POST /v1/completions HTTP/1.1\r\nHost: a\r\n" + headers +
                "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return client.Read();
  };
  EXPECT_EQ(post("Content-Type: text/plain\r\n").status, 200);
  EXPECT_EQ(post("").status, 200);
  EXPECT_EQ(post("Origin: http://evil\r\nContent-Type: text/plain\r\n").status, 415);
  EXPECT_EQ(post("Origin: http://evil\r\nContent-Type: application/json; charset=utf-8\r\n").status,
            200);
  EXPECT_FALSE(post("Origin: http://evil\r\nContent-Type: application/json\r\n")
                   .headers.contains("access-control-allow-origin"));
}

TEST_F(HttpTest, AnEncodedBodyIsRefusedByName) {
  rig_.AddPair();
  rig_.Start();
  HttpClient client(rig_.address());
  client.Post("/v1/completions", CompletionBody(1), "Content-Encoding: gzip\r\n");
  const HttpAnswer answer = client.Read();
  EXPECT_EQ(answer.status, 415);
  EXPECT_EQ(answer.code(), "unsupported_media_type");
  EXPECT_NE(answer.body.find("gzip"), std::string::npos);
  client.Post("/v1/completions", CompletionBody(1), "Content-Encoding: Identity\r\n");
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(HttpTest, AWholeUrlAsTargetIsServed) {
  rig_.AddPair();
  rig_.Start();
  HttpClient client(rig_.address());
  client.Get("http://somewhere/v1/models");
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(HttpTest, AClientThatSendsNoMoreStillGetsWhatNeedsNoWaiting) {
  rig_.Start(/*must_be_ready=*/false);
  for (const char* path : {"/livez", "/metrics", "/v1/models"}) {
    HttpClient client(rig_.address());
    client.Get(path);
    client.ShutdownWrite();
    EXPECT_EQ(client.Read().status, 200) << path;
    EXPECT_TRUE(client.IsClosedByPeer());
  }
}

TEST_F(HttpTest, PipelinedRequestsBeforeAFinAreAllAnswered) {
  rig_.AddPair();
  rig_.Start();
  HttpClient client(rig_.address());
  for (int i = 1; i <= 20; ++i) client.Post("/v1/completions", CompletionBody(i));
  client.ShutdownWrite();
  for (int i = 1; i <= 20; ++i) {
    const HttpAnswer answer = client.Read();
    ASSERT_EQ(answer.status, 200) << i;
    ASSERT_EQ(answer.json()["usage"]["completion_tokens"], i);
  }
  EXPECT_TRUE(client.IsClosedByPeer());
}

TEST_F(HttpTest, AnOldClientThatSendsNoMoreCountsAsGone) {
  rig_.AddPair(/*is_automatic=*/false);
  rig_.Start();
  HttpClient client(rig_.address());
  const std::string body = CompletionBody(2);
  client.Send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
  rig_.prefill().NextPrefill();
  client.ShutdownWrite();
  rig_.prefill().NextCancel();
  EXPECT_EQ(client.Read().status, 0);
}

TEST_F(HttpTest, WrongMethodsAndRoutesKeepTheConnection) {
  rig_.Start(/*must_be_ready=*/false);
  HttpClient client(rig_.address());
  client.Get("/v1/completions");
  const HttpAnswer method = client.Read();
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.headers.at("allow"), "POST");
  client.Post("/nothing", "{}");
  EXPECT_EQ(client.Read().status, 404);
  client.Get("/metrics");
  EXPECT_NE(client.Read().body.find("pdserve_requests_total"), std::string::npos);
}

}  // namespace
}  // namespace pdserve::testing
