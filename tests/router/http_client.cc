#include "tests/router/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>

#include "absl/time/clock.h"
#include "common/check.h"

namespace pdserve::testing {
namespace {

std::string Member(const nlohmann::json& body, const char* name) {
  if (!body.is_object() || !body.contains("error") || !body["error"].contains(name)) return "";
  const auto& value = body["error"][name];
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

std::string HttpAnswer::code() const { return Member(json(), "code"); }
std::string HttpAnswer::param() const { return Member(json(), "param"); }

HttpClient::HttpClient(const std::string& address, int receive_buffer_bytes) {
  const size_t colon = address.rfind(':');
  socket_ = socket(AF_INET, SOCK_STREAM, 0);
  PD_CHECK(socket_ >= 0);
  const timeval patience{20, 0};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  const int on = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (receive_buffer_bytes > 0) {
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
  }
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  PD_CHECK(inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr) == 1);
  if (connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) Close();
}

HttpClient::~HttpClient() { Close(); }

void HttpClient::Close() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
}

void HttpClient::Reset() {
  const linger now{1, 0};
  setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  Close();
}

void HttpClient::ShutdownWrite() { shutdown(socket_, SHUT_WR); }

void HttpClient::Send(const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count = send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return;  // the peer ended; reading will tell
    sent += static_cast<size_t>(count);
  }
}

void HttpClient::Post(const std::string& path, const std::string& body,
                      const std::string& headers) {
  Send("POST " + path + " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n" + headers +
       "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
}

void HttpClient::Get(const std::string& path, const std::string& method) {
  Send(method + " " + path + " HTTP/1.1\r\nHost: test\r\n\r\n");
}

bool HttpClient::Fill() {
  char chunk[65536];
  const ssize_t count = socket_ < 0 ? -1 : recv(socket_, chunk, sizeof chunk, 0);
  if (count <= 0) return false;
  buffer_.append(chunk, static_cast<size_t>(count));
  return true;
}

std::string HttpClient::Line() {
  size_t end = 0;
  while ((end = buffer_.find("\r\n")) == std::string::npos) {
    if (!Fill()) return "";
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return line;
}

std::string HttpClient::Bytes(size_t count) {
  while (buffer_.size() < count && Fill()) {
  }
  const size_t taken = std::min(count, buffer_.size());
  std::string bytes = buffer_.substr(0, taken);
  buffer_.erase(0, taken);
  return bytes;
}

std::string HttpClient::Chunk() {
  const std::string size = Line();
  if (size.empty()) return "";
  std::string bytes = Bytes(std::stoul(size, nullptr, 16));
  Line();
  return bytes;
}

HttpAnswer HttpClient::ReadHead() {
  HttpAnswer answer;
  std::string status = Line();
  for (; status.find(" 100 ") == 8; status = Line()) Line();  // not the answer yet
  if (status.size() < 12) return answer;
  answer.status = std::stoi(status.substr(9, 3));
  for (std::string line = Line(); !line.empty(); line = Line()) {
    const size_t colon = line.find(':');
    std::string name = line.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    answer.headers[name] = line.substr(colon + 2);
  }
  return answer;
}

HttpAnswer HttpClient::Read(bool is_head) {
  HttpAnswer answer = ReadHead();
  if (is_head || answer.status == 0) return answer;
  if (answer.headers.contains("content-length")) {
    answer.body = Bytes(std::stoul(answer.headers["content-length"]));
  } else if (answer.headers.contains("transfer-encoding")) {
    for (std::string chunk = Chunk(); !chunk.empty(); chunk = Chunk()) answer.body += chunk;
  } else {
    while (Fill()) {
    }
    answer.body.swap(buffer_);
  }
  return answer;
}

std::string HttpClient::ReadEvent() {
  size_t end = 0;
  while ((end = events_.find("\n\n")) == std::string::npos) {
    const std::string chunk = Chunk();
    if (chunk.empty()) return "";
    events_ += chunk;
  }
  const std::string event = events_.substr(0, end);
  events_.erase(0, end + 2);
  const size_t data = event.find("data: ");
  return data == std::string::npos ? event : event.substr(data + 6);
}

std::string HttpClient::ReadUntil(const std::string& text) {
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (buffer_.find(text) == std::string::npos) {
    if (absl::Now() > end || !Fill()) return "";
  }
  std::string all;
  all.swap(buffer_);
  return all;
}

bool HttpClient::IsClosedByPeer() {
  char byte = 0;
  return buffer_.empty() && (socket_ < 0 || recv(socket_, &byte, 1, 0) == 0);
}

bool HttpClient::HasInput(absl::Duration patience) {
  pollfd watched{socket_, POLLIN, 0};
  return !buffer_.empty() ||
         poll(&watched, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) != 0;
}

HttpAnswer Post(const std::string& address, const std::string& path, const std::string& body,
                const std::string& headers) {
  HttpClient client(address);
  client.Post(path, body, headers);
  return client.Read();
}

HttpAnswer Get(const std::string& address, const std::string& path) {
  HttpClient client(address);
  client.Get(path);
  return client.Read();
}

std::vector<std::string> Events(const std::string& body) {
  std::vector<std::string> events;
  size_t at = 0;
  for (size_t end = 0; (end = body.find("\n\n", at)) != std::string::npos; at = end + 2) {
    const std::string event = body.substr(at, end - at);
    const size_t data = event.find("data: ");
    if (data != std::string::npos) events.push_back(event.substr(data + 6));
  }
  return events;
}

}  // namespace pdserve::testing
