#!/usr/bin/env python3
"""A proxy in front of an S3 server that goes wrong as its rules say, and counts what passes.

  fault_proxy.py --upstream http://127.0.0.1:9480 [--port P] [--control-port P] [--elsewhere-port P] [--rules FILE]
                 [--tls CERT KEY] [--rate BYTES] [--delay SECONDS]

It listens on 127.0.0.1, prints one line of JSON with its ports, and ends when its standard input does. Requests are
passed on as they are (the Host header too, so that signatures stay right).

Rules: a JSON list. The first rule that matches a request and whose turn it is acts on it; others pass it by.
  {"method": "GET", "key": "regex", "nth": 1, "times": 1, "do": ACTION, ...}
  method, key   absent: any. `key` is searched in the percent-decoded path and query
  nth, times    of the matching requests, the first to act on and how many in a row (0: all from then on)
Actions, and what they take:
  status        answer without asking the server: status, code (an S3 error document of that code), body, headers
  reset         when: "before" (the server never sees it) | "after" (it did it; the answer is lost)
  stall         when: "before" | "body" (after: bytes of the body); the connection stays open and silent
  cut           close after `after` bytes of the answer's body
  full          the whole object with 200, whatever Range says
  headers       pass the answer on with these headers set (null: removed): {"Content-Range": "bytes 0-0/1"}
  corrupt       flip a bit of the body's byte `at`
  drip          the body at `rate` bytes a second
  delay         `seconds` before it is passed on
  redirect      status 302 (or `status`) to another port of this proxy, which serves the answer and records the
                headers it gets; hops: how many redirects in a row; location: somewhere else instead
  endless       status `status` and a body without end
  skew          403 RequestTimeTooSkewed with a Date `seconds` from now

The control port, HTTP:
  GET  /counters    {"requests": n, "sent": bytes to clients, "received": bytes from clients, "by": {"GET": {...}}}
  GET  /log         every request: method, path, headers (in lower case), did (the action), at ("store"|"elsewhere")
  POST /reset       forget counters and log
  PUT  /rules       new rules, counted from now
  PUT  /link        {"rate": bytes a second (0: no limit), "delay": seconds}: ONE link for all connections, both ways
"""

import argparse
import json
import random
import re
import socket
import ssl
import struct
import sys
import threading
import time
import urllib.parse
from email.utils import formatdate

CHUNK = 64 * 1024


class Closed(Exception):
    """The connection ended, or was ended by an action."""


class Link:
    """A token bucket and a delay shared by all connections. Rate 0: no limit."""

    def __init__(self, rate=0, delay=0.0):
        self.lock = threading.Lock()
        self.configure(rate, delay)

    def configure(self, rate, delay):
        with self.lock:
            self.rate, self.delay, self.free_at = rate, delay, time.monotonic()

    def carry(self, count):
        with self.lock:
            if not self.rate:
                return
            now = time.monotonic()
            self.free_at = max(self.free_at, now) + count / self.rate
            wait = self.free_at - now
        if wait > 0.001:
            time.sleep(wait)


class Rules:
    def __init__(self, rules):
        self.lock = threading.Lock()
        self.replace(rules)

    def replace(self, rules):
        with self.lock:
            self.rules = [dict(rule, seen=0, pattern=re.compile(rule.get("key", ""))) for rule in rules]

    def pick(self, method, target):
        target = urllib.parse.unquote(target)
        with self.lock:
            for rule in self.rules:
                if rule.get("method", method) != method or not rule["pattern"].search(target):
                    continue
                rule["seen"] += 1
                nth, times = rule.get("nth", 1), rule.get("times", 1)
                if rule["seen"] >= nth and (times == 0 or rule["seen"] < nth + times):
                    return rule
        return None


class Record:
    """Counters and the log of requests."""

    def __init__(self):
        self.lock = threading.Lock()
        self.clear()

    def clear(self):
        with self.lock:
            self.requests, self.sent, self.received, self.by, self.log = 0, 0, 0, {}, []

    def add(self, entry):
        with self.lock:
            self.requests += 1
            self.log.append(entry)
            del self.log[:-100_000]

    def count(self, method, target, sent=0, received=0, requests=0):
        key = urllib.parse.unquote(target.split("?")[0])
        with self.lock:
            self.sent += sent
            self.received += received
            place = self.by.setdefault(method, {}).setdefault(key, {"requests": 0, "sent": 0, "received": 0})
            place["sent"] += sent
            place["received"] += received
            place["requests"] += requests

    def counters(self):
        with self.lock:
            return {"requests": self.requests, "sent": self.sent, "received": self.received, "by": self.by}


class Stream:
    """A buffered socket that speaks HTTP/1.1."""

    def __init__(self, sock):
        self.sock, self.buffer = sock, b""

    def fill(self):
        data = self.sock.recv(CHUNK)
        if not data:
            raise Closed
        self.buffer += data

    def head(self):
        """(first line, [(name, value)])."""
        while b"\r\n\r\n" not in self.buffer:
            self.fill()
        text, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        lines = text.decode("latin-1").split("\r\n")
        headers = [tuple(part.strip() for part in line.split(":", 1)) for line in lines[1:]]
        return lines[0], headers

    def some(self, most):
        if not self.buffer:
            self.fill()
        data, self.buffer = self.buffer[:most], self.buffer[most:]
        return data

    def body(self, headers):
        """The body's pieces, by Content-Length or chunked."""
        if get(headers, "transfer-encoding") == "chunked":
            yield from self.chunked()
            return
        left = int(get(headers, "content-length") or 0)
        while left:
            data = self.some(min(left, CHUNK))
            left -= len(data)
            yield data

    def chunked(self):
        while True:
            while b"\r\n" not in self.buffer:
                self.fill()
            line, self.buffer = self.buffer.split(b"\r\n", 1)
            left = int(line.split(b";")[0], 16)
            last = left == 0
            left += 2  # the line end behind it
            piece = b""
            while left:
                data = self.some(left)
                left -= len(data)
                piece += data
            if last:
                return
            yield piece[:-2]

    def send(self, data):
        self.sock.sendall(data)

    def send_head(self, first, headers):
        lines = [first] + [f"{name}: {value}" for name, value in headers]
        self.send(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    def close(self, reset=False):
        try:
            if reset:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if isinstance(self.sock, ssl.SSLSocket):
                    self.sock = socket.socket(fileno=self.sock.detach())
            self.sock.close()
        except OSError:
            pass

    def wait_closed(self):
        """Until the client goes away, throwing away what it sends."""
        try:
            while self.sock.recv(CHUNK):
                pass
        except OSError:
            pass
        raise Closed


def get(headers, name):
    return next((value for header, value in headers if header.lower() == name), None)


def with_headers(headers, changes):
    gone = {name.lower() for name in changes}
    kept = [(name, value) for name, value in headers if name.lower() not in gone]
    return kept + [(name, value) for name, value in changes.items() if value is not None]


class Connection:
    """One client's connection, and one to the server behind it."""

    def __init__(self, proxy, sock):
        self.proxy, self.client, self.server = proxy, Stream(sock), None

    def run(self):
        try:
            while True:
                self.request(*self.client.head())
        except (Closed, OSError, ValueError):
            pass
        finally:
            self.client.close()
            if self.server:
                self.server.close()

    # One request

    def request(self, line, headers):
        proxy = self.proxy
        self.method, self.target, _ = line.split(" ", 2)
        rule = proxy.rules.pick(self.method, self.target) or {}
        self.rule, action = rule, rule.get("do", "pass")
        proxy.record.add({"method": self.method, "path": self.target, "did": action, "at": "store",
                          "headers": {name.lower(): value for name, value in headers}})
        proxy.record.count(self.method, self.target, requests=1)
        if proxy.link.delay:
            time.sleep(proxy.link.delay)
        self.headers = headers
        getattr(self, "do_" + action)()

    def drain(self):
        for data in self.client.body(self.headers):
            self.received(data)

    def received(self, data):
        self.proxy.link.carry(len(data))
        self.proxy.record.count(self.method, self.target, received=len(data))

    def send_body(self, data):
        self.proxy.link.carry(len(data))
        self.client.send(data)
        self.proxy.record.count(self.method, self.target, sent=len(data))

    def connect(self):
        if not self.server:
            sock = socket.create_connection(self.proxy.upstream)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.server = Stream(sock)

    def pass_on(self, headers=None):
        """Sends the request to the server; its answer's head."""
        headers = self.headers if headers is None else headers
        self.connect()
        self.server.send_head(f"{self.method} {self.target} HTTP/1.1", headers)
        for data in self.client.body(self.headers):
            self.received(data)
            self.server.send(data)
        while True:
            first, answer = self.server.head()
            if " 100 " not in first + " ":
                return first, answer

    def answer_body(self, answer, first):
        if self.method == "HEAD" or first.split(" ")[1] in ("204", "304"):
            return
        yield from self.server.body(answer)

    def relay(self, first, answer, body):
        chunked = get(answer, "transfer-encoding") == "chunked"
        self.client.send_head(first, answer)
        for data in body:
            self.send_body(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)
        if chunked and self.method != "HEAD":
            self.client.send(b"0\r\n\r\n")
        if (get(answer, "connection") or "").lower() == "close":
            raise Closed

    # The actions

    def do_pass(self):
        first, answer = self.pass_on()
        self.relay(first, answer, self.answer_body(answer, first))

    def do_delay(self):
        time.sleep(self.rule.get("seconds", 1))
        self.do_pass()

    def do_status(self, extra=None):
        self.drain()
        rule = self.rule
        status = rule.get("status", 503)
        body = rule.get("body", "")
        headers = [("Date", formatdate(usegmt=True))]
        if "code" in rule:
            body = f"<?xml version=\"1.0\"?><Error><Code>{rule['code']}</Code><Message>scripted</Message></Error>"
            headers.append(("Content-Type", "application/xml"))
        body = body.encode()
        headers = with_headers(headers, {"Content-Length": str(len(body)), **rule.get("headers", {}), **(extra or {})})
        self.client.send_head(f"HTTP/1.1 {status} Scripted", headers)
        if self.method != "HEAD":
            self.send_body(body)

    def do_skew(self):
        self.rule = {"status": 403, "code": "RequestTimeTooSkewed", "seconds": self.rule["seconds"]}
        self.do_status({"Date": formatdate(time.time() + self.rule["seconds"], usegmt=True)})

    def do_endless(self):
        self.drain()
        self.client.send_head(f"HTTP/1.1 {self.rule.get('status', 503)} Scripted", [("Connection", "close")])
        while True:
            self.send_body(b"x" * CHUNK)

    def do_reset(self):
        if self.rule.get("when", "before") == "after":
            first, answer = self.pass_on()
            for _ in self.answer_body(answer, first):
                pass
        self.client.close(reset=True)
        raise Closed

    def do_stall(self):
        if self.rule.get("when", "before") == "before":
            self.client.wait_closed()
        first, answer = self.pass_on()
        self.client.send_head(first, answer)
        self.some_body(self.answer_body(answer, first), self.rule.get("after", 0))
        self.client.wait_closed()

    def do_cut(self):
        first, answer = self.pass_on()
        self.client.send_head(first, answer)
        self.some_body(self.answer_body(answer, first), self.rule.get("after", 0))
        raise Closed

    def some_body(self, body, most):
        for data in body:
            self.send_body(data[:most])
            most -= len(data[:most])
            if not most:
                return

    def do_full(self):
        first, answer = self.pass_on(with_headers(self.headers, {"Range": None}))
        self.relay(first, answer, self.answer_body(answer, first))

    def do_headers(self):
        first, answer = self.pass_on()
        body = self.answer_body(list(answer), first)
        self.relay(first, with_headers(answer, self.rule["headers"]), body)

    def do_corrupt(self):
        first, answer = self.pass_on()

        def wrong(body):
            at = self.rule.get("at", 0)
            for data in body:
                if 0 <= at < len(data):
                    data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]
                at -= len(data)
                yield data

        self.relay(first, answer, wrong(self.answer_body(answer, first)))

    def do_drip(self):
        first, answer = self.pass_on()

        def slow(body):
            rate = self.rule.get("rate", 100)
            step = max(1, rate // 20)
            for data in body:
                for at in range(0, len(data), step):
                    time.sleep(step / rate)
                    yield data[at:at + step]

        self.relay(first, answer, slow(self.answer_body(answer, first)))

    def do_redirect(self):
        location = self.rule.get("location")
        if location is None:
            first, answer = self.pass_on()
            body = b"".join(self.answer_body(answer, first))
            location = self.proxy.keep_elsewhere(first, answer, body, self.rule.get("hops", 1))
        else:
            self.drain()
        self.client.send_head(f"HTTP/1.1 {self.rule.get('status', 302)} Elsewhere",
                              [("Location", location), ("Content-Length", "0")])


class Elsewhere(Connection):
    """The other host: serves what a redirect left here, to whoever knows its address."""

    def request(self, line, headers):
        self.method, self.target, _ = line.split(" ", 2)
        self.headers = headers
        self.proxy.record.add({"method": self.method, "path": self.target, "did": "pass", "at": "elsewhere",
                               "headers": {name.lower(): value for name, value in headers}})
        kept = self.proxy.elsewhere_answers.get(self.target)
        if kept is None:
            self.client.send_head("HTTP/1.1 404 Gone", [("Content-Length", "0")])
            return
        first, answer, body = kept
        self.client.send_head(first, answer)
        if self.method != "HEAD":
            self.send_body(body)


class Control(Connection):
    def request(self, line, headers):
        method, target, _ = line.split(" ", 2)
        body = b"".join(self.client.body(headers))
        proxy, answer = self.proxy, {}
        try:
            if (method, target) == ("GET", "/counters"):
                answer = proxy.record.counters()
            elif (method, target) == ("GET", "/log"):
                answer = list(proxy.record.log)
            elif (method, target) == ("POST", "/reset"):
                proxy.record.clear()
            elif (method, target) == ("PUT", "/rules"):
                proxy.rules.replace(json.loads(body))
            elif (method, target) == ("PUT", "/link"):
                link = json.loads(body)
                proxy.link.configure(link.get("rate", 0), link.get("delay", 0))
            else:
                raise ValueError("no such control")
            status = "200 OK"
        except (ValueError, KeyError, TypeError, re.error) as error:
            answer, status = {"error": str(error)}, "400 Bad"
        text = json.dumps(answer).encode()
        self.client.send_head(f"HTTP/1.1 {status}", [("Content-Length", len(text))])
        self.client.send(text)


class Proxy:
    def __init__(self, args):
        upstream = urllib.parse.urlsplit(args.upstream)
        self.upstream = (upstream.hostname, upstream.port or 80)
        self.rules = Rules(json.load(open(args.rules)) if args.rules else [])
        self.link = Link(args.rate, args.delay)
        self.record = Record()
        self.elsewhere_answers = {}
        self.tls = None
        if args.tls:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.load_cert_chain(*args.tls)
        self.port = self.listen(args.port, Connection, self.tls)
        self.control = self.listen(args.control_port, Control)
        self.elsewhere = self.listen(args.elsewhere_port, Elsewhere, self.tls)

    def listen(self, port, kind, tls=None):
        server = socket.create_server(("127.0.0.1", port), backlog=512)
        threading.Thread(target=self.accept, args=(server, kind, tls), daemon=True).start()
        return server.getsockname()[1]

    def accept(self, server, kind, tls):
        while True:
            sock, _ = server.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.serve, args=(sock, kind, tls), daemon=True).start()

    def serve(self, sock, kind, tls):
        try:
            if tls:
                sock = tls.wrap_socket(sock, server_side=True)
        except OSError:
            sock.close()
            return
        kind(self, sock).run()

    def keep_elsewhere(self, first, answer, body, hops):
        """Stores an answer on the other host, behind `hops` - 1 redirects; its address."""
        scheme = "https" if self.tls else "http"
        path = f"/cdn/{random.getrandbits(64):x}?X-Signature={random.getrandbits(64):x}"
        self.elsewhere_answers[path] = (first, answer, body)
        location = f"{scheme}://127.0.0.1:{self.elsewhere}{path}"
        for _ in range(hops - 1):
            path = f"/hop/{random.getrandbits(64):x}"
            self.elsewhere_answers[path] = ("HTTP/1.1 302 Found", [("Location", location), ("Content-Length", "0")], b"")
            location = f"{scheme}://127.0.0.1:{self.elsewhere}{path}"
        return location


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--control-port", type=int, default=0)
    parser.add_argument("--elsewhere-port", type=int, default=0)
    parser.add_argument("--rules")
    parser.add_argument("--tls", nargs=2, metavar=("CERT", "KEY"))
    parser.add_argument("--rate", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0)
    proxy = Proxy(parser.parse_args())
    print(json.dumps({"port": proxy.port, "control": proxy.control, "elsewhere": proxy.elsewhere}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
