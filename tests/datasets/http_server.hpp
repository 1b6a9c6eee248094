// SPDX-License-Identifier: MIT
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tutti::test {

// A web server on 127.0.0.1 for the tests of the download scripts. It supports ranges. A test can make it fail in
// several ways.
class HttpServer {
 public:
  struct Request {
    std::string path;
    std::size_t from = 0;  // first byte of the requested range
  };
  struct Behaviour {
    int status = 0;           // if not 0: answer with this status and a body that is not data
    std::size_t cut = 0;      // if not 0: close the connection after this number of bytes of a body
    bool knows_range = true;  // false: always send the whole file
  };

  HttpServer() {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (listener_ < 0 || ::bind(listener_, generic, length) != 0 || ::listen(listener_, 16) != 0 ||
        ::getsockname(listener_, generic, &length) != 0)
      throw std::runtime_error("no socket on 127.0.0.1");
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~HttpServer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] std::string url(const std::string& path) const {
    return "http://127.0.0.1:" + std::to_string(port_) + path;
  }
  void put(const std::string& path, std::string body) {
    const std::lock_guard lock(mutex_);
    files_[path] = std::move(body);
  }
  void behave(Behaviour b) {
    const std::lock_guard lock(mutex_);
    behaviour_ = b;
  }
  // Returns the requests since the last call.
  std::vector<Request> requests() {
    const std::lock_guard lock(mutex_);
    return std::exchange(requests_, {});
  }

 private:
  void serve() {
    for (;;) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      answer(fd);
      ::shutdown(fd, SHUT_WR);
      char rest[256];
      while (::recv(fd, rest, sizeof rest, 0) > 0) {
      }
      ::close(fd);
    }
  }

  void answer(int fd) {
    std::string head;
    char buffer[4096];
    while (head.find("\r\n\r\n") == std::string::npos) {
      const auto n = ::recv(fd, buffer, sizeof buffer, 0);
      if (n <= 0) return;
      head.append(buffer, static_cast<std::size_t>(n));
    }
    const std::lock_guard lock(mutex_);
    Request request;
    const auto space = head.find(' ');
    request.path = head.substr(space + 1, head.find(' ', space + 1) - space - 1);
    const auto range = head.find("Range: bytes=");
    if (range != std::string::npos) request.from = std::strtoull(head.c_str() + range + 13, nullptr, 10);
    requests_.push_back(request);
    const auto file = files_.find(request.path);
    if (behaviour_.status != 0 || file == files_.end()) {
      const std::string body = "<html>not the data</html>";
      send(fd, "HTTP/1.1 " + std::to_string(behaviour_.status != 0 ? behaviour_.status : 404) +
                   " Status\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
                   body);
      return;
    }
    const std::string& body = file->second;
    const bool partial = range != std::string::npos && behaviour_.knows_range;
    if (partial && request.from >= body.size()) {
      send(fd,
           "HTTP/1.1 416 Range Not Satisfiable\r\nConnection: close\r\nContent-Length: 0\r\nContent-Range: bytes */" +
               std::to_string(body.size()) + "\r\n\r\n");
      return;
    }
    const std::size_t from = partial ? request.from : 0;
    std::string answer = partial
                             ? "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes " + std::to_string(from) + "-" +
                                   std::to_string(body.size() - 1) + "/" + std::to_string(body.size()) + "\r\n"
                             : "HTTP/1.1 200 OK\r\nAccept-Ranges: bytes\r\n";
    answer += "Connection: close\r\nContent-Length: " + std::to_string(body.size() - from) + "\r\n\r\n";
    std::size_t bytes = body.size() - from;
    if (behaviour_.cut != 0) bytes = std::min(bytes, behaviour_.cut);
    send(fd, answer + body.substr(from, bytes));
  }

  static void send(int fd, const std::string& data) {
    for (std::size_t at = 0; at < data.size();) {
      const auto n = ::send(fd, data.data() + at, data.size() - at, MSG_NOSIGNAL);
      if (n <= 0) return;
      at += static_cast<std::size_t>(n);
    }
  }

  int listener_ = -1;
  int port_ = 0;
  std::mutex mutex_;
  std::map<std::string, std::string> files_;
  Behaviour behaviour_;
  std::vector<Request> requests_;
  std::thread thread_;
};

}  // namespace tutti::test
